"""The stage as build uses it: cached, picklable, refusing what cannot run; and its figures."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from pagegen.archs import ARCHS, arch
from pagegen.compile import Artifact, Cache, available, compile_plan, compile_source, compiler_of
from pagegen.compile.occupancy import ctas_per_sm
from pagegen.compile.resources import amdgcn_figures, cubin_figures, logged_spill_bytes
from pagegen.errors import CompileError
from pagegen.plan import Backend, Plan
from tests.compile.samples import CUDA, CUDA_STACK, TRITON, Text, sample_plan, sample_source

COMPILED: tuple[Backend, ...] = ("cuda", "triton")


def need(backend: Backend) -> None:
    if available(backend):
        pytest.skip(available(backend))


@pytest.mark.parametrize("backend", COMPILED)
def test_a_warm_cache_gives_the_same_artifact_without_compiling(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(backend)
    plan, cache = sample_plan(backend), Cache(tmp_path)
    source = sample_source(plan)
    first = compile_source(plan, source, arch("sm_80"), cache)
    monkeypatch.setattr("pagegen.compile.compile_plan", None)  # a call would be a TypeError
    assert compile_source(plan, source, arch("sm_80"), cache) == first
    assert cache.find(plan, source, arch("sm_90a")) is None


def test_the_spill_rule_holds_for_what_the_cache_gives(tmp_path: Path) -> None:
    need("cuda")
    lenient, cache = sample_plan("cuda", allow_stack=True), Cache(tmp_path)
    source = sample_source(lenient, CUDA_STACK)
    assert compile_source(lenient, source, arch("sm_80"), cache).resources.stack_bytes == 256
    strict = sample_plan("cuda")
    with pytest.raises(CompileError, match="on a stack"):
        compile_source(strict, sample_source(strict, CUDA_STACK), arch("sm_80"), cache)


def job(plan: Plan, source: Text, target: str) -> Artifact:
    return compile_plan(plan, source, arch(target))


def test_worker_processes_compile_and_their_errors_come_back_whole() -> None:
    need("cuda")
    need("triton")
    cuda, triton = sample_plan("cuda"), sample_plan("triton")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        good = [
            pool.submit(job, plan, sample_source(plan), target)
            for plan in (cuda, triton)
            for target in ("sm_80", "sm_90a")
        ]
        bad = [
            pool.submit(job, cuda, sample_source(cuda, CUDA.replace("p.n", "p.m")), "sm_80"),
            pool.submit(job, triton, sample_source(triton, TRITON.replace("< n", "< m")), "sm_80"),
        ]
        assert len({future.result().digest for future in good}) == 4
        for future in bad:
            error = future.exception()
            assert isinstance(error, CompileError) and error.position is not None
            assert str(error).startswith(str(error.position))
            assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_torch_kernels_need_no_compiler() -> None:
    assert available("torch") == ""
    with pytest.raises(CompileError, match="torch kernels are not compiled"):
        compiler_of("torch")


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.core", None)
    assert "cuda-core" in available("cuda")
    plan = sample_plan("cuda")
    with pytest.raises(CompileError, match=r"pip install 'pagegen\[cu13\]'"):
        compile_source(plan, sample_source(plan), arch("sm_80"), Cache(tmp_path))


# ---- figures


@pytest.mark.parametrize(
    ("target", "registers", "smem_bytes", "num_warps", "blocks"),
    [
        ("sm_80", 64, 0, 4, 8),  # 32 warps of 64 registers fill the file
        ("sm_80", 65, 0, 4, 7),  # 72 registers a thread: 7 warps in a quarter of the file
        ("sm_80", 255, 0, 8, 1),
        ("sm_80", 255, 0, 16, 0),  # the compiler would not have allowed it
        ("sm_80", 32, 16384, 4, 9),  # 164 KB / (16 KB + 1 KB reserved)
        ("sm_90a", 32, 227 * 1024, 4, 1),
        ("sm_90a", 32, 113 * 1024, 4, 2),
        ("sm_90a", 168, 0, 12, 1),
        ("sm_86", 16, 0, 1, 16),  # slots
        ("sm_89", 16, 0, 1, 24),
        ("sm_120a", 40, 0, 4, 12),  # threads
        ("gfx942", 128, 0, 4, 4),
        ("gfx942", 76, 32768, 4, 2),  # 64 KB of LDS
        ("gfx950", 64, 80 * 1024, 4, 2),
    ],
)
def test_blocks_on_a_multiprocessor(
    target: str, registers: int, smem_bytes: int, num_warps: int, blocks: int
) -> None:
    found = ctas_per_sm(
        arch(target), registers=registers, smem_bytes=smem_bytes, num_warps=num_warps
    )
    assert found == blocks


def test_the_limits_of_a_target_fit_one_block_of_the_largest_size() -> None:
    for row in ARCHS:
        largest = ctas_per_sm(row, registers=32, smem_bytes=row.smem_per_block_bytes, num_warps=4)
        assert largest == 1, row.name


def test_spills_of_every_function_in_a_log_count() -> None:
    log = """ptxas info    : Function properties for k
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
"""
    assert logged_spill_bytes(log) == 20
    assert logged_spill_bytes("") is None


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_the_cubin_alone_tells_what_the_log_told(backend: Backend, target: str) -> None:
    need(backend)
    plan = sample_plan(backend)
    made = compile_plan(plan, sample_source(plan), arch(target))
    alone = cubin_figures(made.code, made.symbol, "", counts_reserved=target != "sm_80")
    assert alone.registers == made.resources.registers
    assert alone.static_smem_bytes == made.resources.static_smem_bytes
    assert alone.stack_bytes == alone.spill_bytes == 0


@pytest.mark.parametrize("code", [b"", b"\x7fELF\x02\x01", b"MZ" * 100, b"\x7fELF\x02\x01" * 20])
def test_code_that_is_no_cubin_is_a_compile_error(code: bytes) -> None:
    with pytest.raises(CompileError):
        cubin_figures(code, "k", "", counts_reserved=False)


def test_amd_metadata_tells_registers_spills_and_scratch() -> None:
    text = """amdhsa.kernels:
  - .agpr_count:     16
    .group_segment_fixed_size: 32
    .private_segment_fixed_size: 64
    .sgpr_count:     22
    .vgpr_count:     76
    .vgpr_spill_count: 3
"""
    found = amdgcn_figures(text, "k")
    assert (found.registers, found.spill_bytes, found.stack_bytes) == (76, 12, 64)
    assert found.static_smem_bytes == 32
    with pytest.raises(CompileError, match="vgpr_spill_count"):
        amdgcn_figures(text.replace(".vgpr_spill_count", ".spills"), "k")
