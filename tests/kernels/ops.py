"""write_kv, merge_states and copy_blocks of a launcher, launched as a host launches them."""

from __future__ import annotations

import torch
from torch import Tensor

from pagegen.plan import Plan
from pagegen.spec import Spec
from tests.cache_ops import Fault
from tests.kernels.calls import cache_arguments, row_strides
from tests.kernels.grids import copy_blocks_grid, merge_states_grid, write_kv_grid
from tests.kernels.kernels import Arguments, Kernels
from tests.kernels.specs import plan_of


class LaunchedOps:
    """One variant of the three kernels of one spec."""

    def __init__(self, kernels: Kernels, spec: Spec, variant: str) -> None:
        self.kernels = kernels
        self.spec = spec
        self.variant = variant

    def _launch(self, plan: Plan, grid: int, arguments: Arguments) -> Fault:
        fault = torch.zeros(4, dtype=torch.int32)
        self.kernels.launch(plan, grid, {**arguments, "fault": fault})
        found = tuple(fault.tolist())
        return found if found[0] else None

    def write_kv(
        self, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor
    ) -> Fault:
        """Tokens into their slots."""
        plan = plan_of(self.kernels, self.spec, "write_kv", self.variant)
        num_tokens = slot_mapping.shape[0]
        arguments: Arguments = {
            **cache_arguments(self.spec.layout, k_cache, v_cache),
            "k": k,
            "v": v,
            "slot_mapping": slot_mapping,
            **row_strides("k", k),
            **row_strides("v", v),
            "num_tokens": num_tokens,
            "num_slots": k_cache.shape[0] * self.spec.block_size,
        }
        return self._launch(plan, write_kv_grid(plan, num_tokens), arguments)

    def merge_states(
        self,
        out: Tensor,
        lse: Tensor,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
    ) -> Fault:
        """Two states into one."""
        plan = plan_of(self.kernels, self.spec, "merge_states", self.variant)
        tensors = {"out": out, "lse": lse, "out_a": out_a, "lse_a": lse_a}
        tensors |= {"out_b": out_b, "lse_b": lse_b}
        steps: dict[str, int] = {}
        for name, tensor in tensors.items():
            steps |= row_strides(name, tensor)
        num_tokens, num_heads = lse.shape
        arguments: Arguments = {
            **tensors,
            **steps,
            "num_tokens": num_tokens,
            "num_rows": num_tokens * num_heads,
        }
        return self._launch(plan, merge_states_grid(plan, num_tokens), arguments)

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, src_to_dst: Tensor) -> Fault:
        """Blocks onto blocks."""
        plan = plan_of(self.kernels, self.spec, "copy_blocks", self.variant)
        num_pairs = src_to_dst.shape[0]
        arguments: Arguments = {
            **cache_arguments(self.spec.layout, k_cache, v_cache),
            "src_to_dst": src_to_dst,
            "num_pairs": num_pairs,
            "num_blocks": k_cache.shape[0],
        }
        return self._launch(plan, copy_blocks_grid(plan, num_pairs), arguments)
