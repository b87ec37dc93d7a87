"""Triton ahead of time: every target with no GPU, no driver, and no file left behind."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagegen.archs import ARCHS, Arch, arch
from pagegen.compile import Artifact, available, compile_plan, compiler_of
from pagegen.compile.triton_aot import TritonAot, signature
from pagegen.compile.triton_release import release, triton_version
from pagegen.errors import CompileError
from pagegen.plan import Plan
from tests.compile.samples import TRITON, sample_plan, sample_source

PLAN = sample_plan("triton")


def has_amd() -> bool:
    """Whether this build of Triton has the AMD back end."""
    return importlib.util.find_spec("triton.backends.amd") is not None


pytestmark = pytest.mark.skipif(bool(available("triton")), reason=available("triton"))


def compiled(target: str = "sm_90a", text: str = TRITON, plan: Plan = PLAN) -> Artifact:
    return compile_plan(plan, sample_source(plan, text), arch(target))


def changed(old: str, new: str) -> str:
    assert old in TRITON
    return TRITON.replace(old, new, 1)


@pytest.mark.parametrize("target", ARCHS, ids=lambda row: row.name)
def test_every_target_compiles_and_tells_its_cost(target: Arch) -> None:
    if target.vendor == "hip" and not has_amd():
        pytest.skip("this build of Triton has no AMD back end")
    made = compiled(target.name)
    assert made.arch == target.name and made.symbol == PLAN.symbol
    assert made.code.startswith(b"\x7fELF") and PLAN.symbol.encode() in made.code
    used = made.resources
    assert 16 <= used.registers <= 128
    assert (used.spill_bytes, used.stack_bytes, used.static_smem_bytes) == (0, 0, 0)
    assert 0 < used.dynamic_smem_bytes <= target.smem_per_block_bytes
    assert used.num_warps == 4 and used.ctas_per_sm >= 2
    if target.vendor == "cuda":
        assert made.path.endswith(f".{target.name}.cubin")
        assert made.toolkit.startswith(f"triton {triton_version()} ptxas 1")
        assert made.driver_cuda in ("12.0", "13.0")
    else:
        assert made.path.endswith(f".{target.name}.hsaco")
        assert made.toolkit == f"triton {triton_version()}" and made.driver_cuda == ""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_spill_is_measured_and_refused(target: str) -> None:
    # 128 x 128 scores in one warp would be 512 registers of each thread; there are 255.
    text = changed("ROWS = tl.constexpr(64)", "ROWS = tl.constexpr(128)")
    wide = sample_plan("triton", num_warps=1, allow_stack=True)
    used = compiled(target, text, wide).resources
    assert used.spill_bytes > 0 and used.stack_bytes > 0
    with pytest.raises(CompileError, match=f"on {target} spills {used.spill_bytes} bytes"):
        compiled(target, text, sample_plan("triton", num_warps=1))


def test_the_signature_promises_alignment_of_pointers_only() -> None:
    types, aligned = signature(PLAN)
    assert types == {
        "out_ptr": "*fp32",
        "x_ptr": "*bf16",
        "x_stride_row": "i64",
        "scale": "fp32",
        "n": "i32",
    }
    assert aligned == (0, 1)


# ---- one source after another, in one process


def test_a_second_version_under_the_same_name_really_is_compiled() -> None:
    text = changed("* scale", "+ scale")
    first, second, again = compiled(), compiled(text=text), compiled()
    assert first.code != second.code and first == again


def test_an_error_in_the_second_version_points_into_the_second_version() -> None:
    compiled()
    with pytest.raises(CompileError) as caught:
        compiled(text=changed("    col =", "    # One more line.\n    col = missing +"))
    where = caught.value.position
    assert where is not None and where.path == "triton/merge_states_tiny.py"
    assert where.text.startswith("    col = missing +")
    assert where.text[where.column - 1 :].startswith("missing")


# ---- errors


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("return tl.sum", "return tl sum", "return tl sum", "invalid syntax"),
        ("import triton\n", "import tritium\n", "import tritium", "No module named 'tritium'"),
        ("tl.trans(x)", "tl.trans(y)", "scores = tl.dot", "y is not defined"),
        ("tl.sum(scores, 1)", "tl.sum(scores, 7)", "return tl.sum", "invalid axis 7"),
        ("COLS = tl.constexpr(64)", "COLS = tl.constexpr(48)", "col = tl.arange", "power of 2"),
        ("COLS = tl.constexpr(64)", "COLS = 64", "col = tl.arange", "global variable COLS"),
    ],
)
def test_an_error_names_its_line_in_the_emitted_source(
    old: str, new: str, place: str, message: str
) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(text=changed(old, new))
    where = caught.value.position
    assert where is not None and where.path == "triton/merge_states_tiny.py"
    assert where.text.strip().startswith(place)
    assert message in str(caught.value)


def test_an_assembler_error_is_told_in_its_own_words_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    call = "tl.inline_asm_elementwise('foo;', '=r,r', [row], tl.int32, is_pure=False, pack=1)"
    with pytest.raises(CompileError, match="Not a name of any known instruction: 'foo'") as caught:
        compiled(text=changed("    tl.store", f"    {call}\n    tl.store"))
    assert str(tmp_path) not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_source_without_the_plans_function_is_refused() -> None:
    with pytest.raises(CompileError, match=f"no function {PLAN.symbol}"):
        compiled(text=changed("def SYMBOL", "def other"))


def test_too_much_shared_memory_is_refused_before_any_launch() -> None:
    text = changed("ROWS = tl.constexpr(64)", "ROWS = tl.constexpr(16)")
    text = text.replace("COLS = tl.constexpr(64)", "COLS = tl.constexpr(4096)")
    with pytest.raises(CompileError, match="bytes of shared memory") as caught:
        compiled("sm_86", text, sample_plan("triton", allow_stack=True))
    assert "at most 101376" in str(caught.value)


def test_no_temporary_folder_is_a_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagegen.compile.triton_aot.interpreting", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    with pytest.raises(CompileError, match="set TMPDIR"):
        compiled()


# ---- what is installed


def test_an_old_or_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert release("3.6.0+cu128") == (3, 6)
    monkeypatch.setattr("pagegen.compile.triton_aot.triton_version", lambda: "3.2.0")
    with pytest.raises(CompileError, match=r"Triton 3\.2\.0 is installed.*3\.6") as caught:
        compiled()
    assert "pip install 'pagegen[cu13]'" in str(caught.value)
    monkeypatch.setattr("pagegen.compile.triton_aot.triton_version", lambda: "")
    with pytest.raises(CompileError, match="need the triton package"):
        compiled()


def test_a_build_without_the_targets_back_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.backends.backends", {"nvidia": object()})
    with pytest.raises(CompileError, match="cannot compile for gfx942"):
        TritonAot().refuse_unknown(arch("gfx942"))


def test_the_identity_tells_triton_and_its_assemblers() -> None:
    identity = compiler_of("triton").identity()
    assert identity.startswith(f"triton {triton_version()} (") and "cuda_1" in identity


# ---- the world outside


def test_same_source_same_bytes_and_no_path_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert compiled() == first
    for text in ("/tmp", str(tmp_path), "pagegen_", ".py"):
        assert text.encode() not in first.code
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_users_environment_reaches_neither_the_code_nor_the_disk(tmp_path: Path) -> None:
    """In a process of its own, since Triton reads some variables when it is imported."""
    program = """
import sys
from pagegen.archs import arch
from pagegen.compile import compile_plan
from tests.compile.samples import sample_plan, sample_source
assert not {"triton", "torch", "cuda.core", "jinja2"} & set(sys.modules), "importing must be light"
plan = sample_plan("triton")
made = compile_plan(plan, sample_source(plan), arch("sm_90a"))
assert "torch" not in sys.modules, "compiling needs no torch"
print(made.digest)
"""
    hostile = {
        "HOME": str(tmp_path / "home"),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_KERNEL_DUMP": "1",
        "TRITON_OVERRIDE_ARCH": "sm80",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "DISABLE_PTXAS_OPT": "1",
        "PTXAS_OPTIONS": "-O0",
    }
    (tmp_path / "home").mkdir()
    environment = {**os.environ, **hostile, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == compiled().digest
    assert list((tmp_path / "home").iterdir()) == [] and not (tmp_path / "cache").exists()


def test_a_process_that_interprets_kernels_can_still_compile_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = compiled()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compiled() == plain
    with pytest.raises(CompileError, match="y is not defined") as caught:
        compiled(text=changed("tl.trans(x)", "tl.trans(y)"))
    assert caught.value.position is not None
