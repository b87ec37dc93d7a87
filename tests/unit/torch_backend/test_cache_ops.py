"""The torch backend's write_kv, merge_states and copy_blocks, held to every backend's contract."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from pagegen.spec import Spec
from tests.cache_ops import Fault
from tests.cache_ops_contract import CONTRACT, Check
from tests.rendering import load_kernel
from tests.specimens import specimen

BF16, FP16, FP32 = (
    {"dtype_query": name, "dtype_kv": name, "dtype_out": name} for name in ("bf16", "fp16", "fp32")
)
SPECS = {
    "nhd-bf16": specimen(backends=("torch",), **BF16),
    "hnd-fp16": specimen(
        backends=("torch",), layout="HND", block_size=24, num_kv_heads=3, num_q_heads=3, **FP16
    ),
    "dims-fp32": specimen(backends=("torch",), head_dim=40, head_dim_v=72, block_size=10, **FP32),
    "mha71": specimen(backends=("torch",), num_kv_heads=71, num_q_heads=71, block_size=9),
}


class TorchOps:
    """The emitted functions themselves."""

    def __init__(self, spec: Spec, folder: Path, variant: str) -> None:
        def load(kernel: str) -> ModuleType:
            return load_kernel(spec, kernel, "torch", folder, variant)

        self._write_kv = load("write_kv").write_kv
        self._merge_states = load("merge_states").merge_states
        self._copy_blocks = load("copy_blocks").copy_blocks

    def write_kv(self, *tensors: torch.Tensor) -> Fault:
        fault: Fault = self._write_kv(*tensors)
        return fault

    def merge_states(self, *tensors: torch.Tensor) -> Fault:
        fault: Fault = self._merge_states(*tensors)
        return fault

    def copy_blocks(self, *tensors: torch.Tensor) -> Fault:
        fault: Fault = self._copy_blocks(*tensors)
        return fault


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SPECS)
def test_contract(check: Check, name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    check(TorchOps(spec, tmp_path, "default"), TorchOps(spec, tmp_path, "checked"), spec)


def test_nothing_to_do_is_legal(tmp_path: Path) -> None:
    spec = SPECS["nhd-bf16"]
    for variant in ("default", "checked"):
        ops = TorchOps(spec, tmp_path, variant)
        cache = torch.zeros(2, 4, 2, 32, dtype=torch.bfloat16)
        none = torch.zeros(0, 2, 32, dtype=torch.bfloat16)
        assert not ops.write_kv(cache, cache, none, none, torch.zeros(0, dtype=torch.int64))
        assert not ops.copy_blocks(cache, cache, torch.zeros(0, 2, dtype=torch.int64))
        out, lse = torch.zeros(0, 4, 32, dtype=torch.bfloat16), torch.zeros(0, 4)
        assert not ops.merge_states(out, lse, out, lse, out, lse)
