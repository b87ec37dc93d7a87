"""NVRTC: every CUDA target with no GPU, figures that are true, errors with their place."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from pagegen.archs import ARCHS, arch
from pagegen.compile import Artifact, available, compile_plan, compiler_of
from pagegen.compile.nvrtc import nvrtc_version, refusal, refuse_unlisted
from pagegen.compile.resources import sections
from pagegen.errors import CompileError
from tests.compile.samples import CUDA, CUDA_SPILLING, CUDA_STACK, sample_plan, sample_source

TARGETS = [row.name for row in ARCHS if row.vendor == "cuda"]
PLAN = sample_plan("cuda")
SPILLING = sample_plan("cuda", num_warps=32, allow_stack=True)

pytestmark = pytest.mark.skipif(bool(available("cuda")), reason=available("cuda"))


def compiled(target: str = "sm_90a", text: str = CUDA, plan: object = PLAN) -> Artifact:
    assert isinstance(plan, type(PLAN))
    return compile_plan(plan, sample_source(plan, text), arch(target))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_compiles_and_tells_its_cost(target: str) -> None:
    made = compiled(target)
    major, minor = nvrtc_version()
    assert made.arch == target and made.symbol == PLAN.symbol
    assert made.path == f"cubin/{PLAN.symbol}.{target}.cubin"
    assert made.toolkit == f"nvrtc {major}.{minor}"
    assert made.driver_cuda == f"{major}.0"
    assert f".text.{PLAN.symbol}" in {section.name for section in sections(made.code)}
    used = made.resources
    assert 8 <= used.registers <= 32
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert (used.static_smem_bytes, used.dynamic_smem_bytes) == (512, 0)
    assert used.num_warps == 4
    # 128 threads with little else: as many blocks as the threads of the target allow.
    assert used.ctas_per_sm == arch(target).max_threads_per_sm // 128


@pytest.mark.parametrize("target", TARGETS)
def test_a_spill_is_measured_and_refused(target: str) -> None:
    used = compiled(target, CUDA_SPILLING, SPILLING).resources
    assert used.registers == 64 and used.spill_bytes >= 128 and used.stack_bytes >= 128
    strict = sample_plan("cuda", num_warps=32)
    with pytest.raises(CompileError) as caught:
        compiled(target, CUDA_SPILLING, strict)
    message = str(caught.value)
    for part in (strict.symbol, target, f"{used.spill_bytes} bytes", "to fix: a smaller tile"):
        assert part in message


def test_a_stack_frame_without_spills_is_refused_too() -> None:
    used = compiled("sm_80", CUDA_STACK, sample_plan("cuda", allow_stack=True)).resources
    assert used.spill_bytes == 0 and used.stack_bytes == 256
    with pytest.raises(CompileError, match="256 bytes of each thread on a stack"):
        compiled("sm_80", CUDA_STACK)


def test_an_error_names_file_line_and_column_of_the_emitted_source() -> None:
    with pytest.raises(CompileError) as caught:
        compiled(text=CUDA.replace("127 - threadIdx.x", "127 - thread.x"))
    where = caught.value.position
    assert where is not None and where.path == "cuda/merge_states_tiny.cu"
    assert where.text[where.column - 1 :].startswith("thread.x")
    assert CUDA.splitlines()[where.line - 1].lstrip().startswith("if (threadIdx.x < p.n)")
    assert 'identifier "thread" is undefined' in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("row[128]", "row[99999]", "uses too much shared data"),
        ("row[thread", 'asm("foo;"); row[thread', "Not a name of any known instruction: 'foo'"),
        ('extern "C" ', "", "the source defines no kernel sample_merge_states_tiny"),
        ("SYMBOL", "other", "the source defines no kernel sample_merge_states_tiny"),
        ("typedef", "#include <cstdint>\ntypedef", "cuda/merge_states_tiny.cu:1"),
    ],
)
def test_whatever_fails_is_a_compile_error(old: str, new: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(text=CUDA.replace(old, new, 1))
    assert message in str(caught.value)


def test_only_the_first_error_is_told() -> None:
    log = """6: NVRTC_ERROR_COMPILATION, compilation log:

decode.cu(3): warning #177-D: variable "x" was declared but never referenced
    int x;
        ^

decode.cu(2): error: identifier "y" is undefined
  int a = y;
          ^

decode.cu(9): error: expected a ";"
"""
    error = refusal(log, sample_source(PLAN), arch("sm_80"))
    assert error.position is not None
    assert (error.position.line, error.position.column) == (2, 9)
    assert 'identifier "y"' in str(error) and "expected" not in str(error)


def test_shared_memory_beyond_the_targets_limit_is_refused() -> None:
    plan = sample_plan("cuda", dynamic_smem_bytes=arch("sm_86").smem_per_block_bytes)
    with pytest.raises(CompileError, match="at most 101376 for a block"):
        compiled("sm_86", plan=plan)
    assert compiled("sm_80", plan=plan).resources.ctas_per_sm == 1


def test_same_source_same_bytes_and_no_path_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled()
    monkeypatch.chdir(tmp_path)
    second = compiled()
    assert first == second
    for text in (os.getcwd(), str(Path.home()), "/tmp", "merge_states_tiny.cu"):
        assert text.encode() not in first.code


def test_the_users_environment_does_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compiled()
    monkeypatch.setenv("NVRTC_APPEND_FLAGS", "-use_fast_math -DSYMBOL")
    monkeypatch.setenv("NVRTC_PREPEND_FLAGS", "--nonsense")
    assert compiled() == plain
    assert os.environ["NVRTC_PREPEND_FLAGS"] == "--nonsense"


def test_a_target_the_release_does_not_know_is_refused_with_the_known_ones() -> None:
    refuse_unlisted(arch("sm_90a"), [75, 80, 90], "nvrtc 12.0")
    with pytest.raises(CompileError) as caught:
        refuse_unlisted(arch("sm_100a"), [90, 80], "nvrtc 12.0")
    message = str(caught.value)
    assert "nvrtc 12.0 cannot compile for sm_100a" in message and "sm_80, sm_90" in message
    with pytest.raises(CompileError, match="gfx942 has no CUDA compiler"):
        compiled("gfx942")


def test_the_identity_tells_the_exact_release() -> None:
    major, _ = nvrtc_version()
    wheel = "nvidia-cuda-nvrtc" if major >= 13 else f"nvidia-cuda-nvrtc-cu{major}"
    assert importlib.metadata.version(wheel) in compiler_of("cuda").identity()
