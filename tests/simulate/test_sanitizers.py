"""The same kernels under the C++ compiler's own sanitizers, in a process of its own.

They see what the simulator does not look at: a kernel's registers and local arrays, overflow of
signed numbers, shifts that are too wide.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROOF = """
import sys
from pagegen.verify import kernel_results
from tests.simulate.packages import cuda_kernels, package
for kernel, variant in cuda_kernels("tiny"):
    for result in kernel_results(package("tiny"), kernel, "cuda", variant, "cpu", 0, True):
        assert result.ok, result
print("clean")
"""
FAULT = """
import torch
from pagegen.simulate import simulate
kernel = '''
struct Params { int* to; };
extern "C" __global__ void past(const Params p) { p.to[8] = %s; }
'''
simulate(
    kernel %% "%s", symbol="past", file_name="past.cu", params=[("to", "ptr")], grid=1,
    num_threads=32, shared_bytes=0, values={"to": torch.zeros(8, dtype=torch.int32)},
)
"""


def under_sanitizers(program: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers' library loaded first, as their rules ask."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the library to load first is asked of g++")
    asked = [compiler, "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    environment = {
        **os.environ,
        "CXX": compiler,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PAGEGEN_SIMULATE": "1",
        "PAGEGEN_SIMULATE_SANITIZE": "address,undefined",
    }
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_every_kernel_of_a_small_spec_is_clean() -> None:
    done = under_sanitizers(PROOF)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "clean\n"


@pytest.mark.parametrize(
    ("value", "said"),
    [("0", "heap-buffer-overflow"), ("1 << (31 + p.to[0] * 0 + 2)", "shift exponent")],
)
def test_a_fault_ends_the_process(value: str, said: str) -> None:
    done = under_sanitizers(FAULT % ("%s", value))
    assert done.returncode != 0
    assert said in done.stderr
