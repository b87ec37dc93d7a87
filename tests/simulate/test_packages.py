"""Every CUDA kernel of every shipped spec, simulated in three orders of threads, blocks and copies.

Results are held to the oracle as on a GPU; the simulator adds what a GPU does not tell: races,
copies not waited for, memory read before it is written.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pagegen import cases
from pagegen.cases import TOLERANCE
from pagegen.oracle import paged_attention
from pagegen.runtime.loader import load
from pagegen.verify import kernel_results, relative_error, shape_of
from tests.host_package import write_package
from tests.simulate.packages import SHIPPED, cuda_kernels, package
from tests.specimens import specimen

ORDERS = ("0", "1", "2")
everything = pytest.mark.parametrize(
    ("spec", "kernel", "variant"), [(spec, *row) for spec in SHIPPED for row in cuda_kernels(spec)]
)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes backend cuda run on CPU tensors."""
    monkeypatch.setenv("PAGEGEN_SIMULATE", "1")


@everything
def test_a_kernel_agrees_with_the_oracle_in_every_order(
    spec: str, kernel: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ORDERS:
        monkeypatch.setenv("PAGEGEN_SIMULATE_SEED", order)
        # The small spec takes all cases, the large ones the first.
        quick = spec != "tiny"
        results = list(kernel_results(package(spec), kernel, "cuda", variant, "cpu", 3, quick))
        assert results
        assert [result for result in results if not result.ok] == []


def test_decode_of_a_small_batch_takes_less_than_two_seconds(tmp_path: Path) -> None:
    spec = specimen(num_q_heads=8, num_kv_heads=2, head_dim=64, head_dim_v=64, block_size=16)
    ops = load(write_package(tmp_path, spec))
    shape = shape_of(ops)
    case = cases.make_case(shape, "four of 200", [200] * 4, [1] * 4, seed=5)
    tensors = (case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens)
    ops.decode(*tensors, backend="cuda")  # compiles
    begin = time.perf_counter()
    out = ops.decode(*tensors, backend="cuda")
    assert time.perf_counter() - begin < 2.0
    want, _ = paged_attention(*tensors, case.cu_seqlens_q, shape.attention, case.sm_scale)
    assert relative_error(out, want) <= TOLERANCE["bfloat16"]
