"""Every probe, and so every primitive, is PTX that NVRTC assembles for sm_90a."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pagegen.archs import arch
from pagegen.compile import available
from pagegen.compile.nvrtc import compile_cubin
from tests.compile.samples import Text
from tests.probes.table import PROBES

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(bool(available("cuda")), reason=available("cuda"))
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_compiles_for_sm_90a(name: str) -> None:
    code, log = compile_cubin(Text(f"{name}.cu", PROBES[name].text()), arch("sm_90a"))
    assert code.startswith(b"\x7fELF")
    # What the assembler says where it makes products wait for each other.
    assert "wgmma" not in log.replace(name, "") and "setmaxnreg" not in log.replace(name, "")


@pytest.mark.skipif(shutil.which("clang-format") is None, reason="no clang-format")
@pytest.mark.parametrize("name", ["pipeline", "wgmma_rs_fp8_e4m3_n256_swizzle_64", "tma_store_5d"])
def test_the_partials_of_a_probe_are_formatted(name: str) -> None:
    machine = PROBES[name].text().split("#endif")[0] + "#endif\n"
    style = (ROOT / "generated" / ".clang-format").read_text(encoding="utf-8")
    inline = "{" + ", ".join(style.strip().splitlines()) + "}"
    done = subprocess.run(
        ["clang-format", f"--style={inline}", "--dry-run", "-Werror", "--assume-filename=x.cu"],
        input=machine, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
