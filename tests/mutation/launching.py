"""Launches the text of one kernel, changed or not, in the simulator, as tests launch kernels.

It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pagegen.emit import emit
from pagegen.plan import Backend, Plan
from pagegen.simulate.launch import Simulator
from tests.cache_ops import Fault

Arguments = Mapping[str, Tensor | int | float]


class Simulated:
    """One plan runs as given, changed or not; other plans run as emit gives them."""

    backend: Backend = "cuda"
    arch = "sm_90a"
    device = torch.device("cpu")

    def __init__(self, plan: Plan, simulator: Simulator) -> None:
        self.plan = plan
        self.simulator = simulator
        self.seed = 0
        self.bank_conflicts = 0  # of the plan's launches so far
        self.overrides: dict[str, int] = {}  # arguments that a call has no words for

    def launch(self, plan: Plan, grid: int, arguments: Arguments) -> None:
        """One launch, one block after the other: two runs are the same."""
        if not grid:
            return
        is_mine = plan.symbol == self.plan.symbol
        simulator = self.simulator if is_mine else unchanged(plan)
        figures = simulator.launch(
            [(row.name, row.type) for row in plan.params],
            grid=grid,
            num_threads=plan.num_threads,
            shared_bytes=plan.dynamic_smem_bytes,
            values={**arguments, **self.overrides},
            seed=self.seed,
            workers=1,
        )
        if is_mine:
            self.bank_conflicts += figures.bank_conflicts

    def stop(self) -> None:
        """Nothing was started."""


def unchanged(plan: Plan) -> Simulator:
    """What a plan gives, from the simulator's cache or compiled now."""
    return Simulator.of(emit(plan, "m.yaml").text, plan.symbol, f"{plan.kernel}_{plan.variant}.cu")


class SimulatedOps:
    """write_kv, merge_states and copy_blocks of one variant, launched as a host launches them."""

    def __init__(self, kernels: Simulated, plans: Mapping[str, Plan]) -> None:
        self.kernels = kernels
        self.plans = plans  # by kernel

    def _launch(self, kernel: str, rows: int, per: str, values: Arguments) -> Fault:
        plan = self.plans[kernel]
        size = plan.constant(per)
        grid = rows * size if per == "PARTS" else -(-rows // size)
        fault = torch.zeros(4, dtype=torch.int32)
        self.kernels.launch(plan, grid, {**values, "fault": fault})
        found = tuple(fault.tolist())
        return found if found[0] else None

    def _caches(self, kernel: str, k_cache: Tensor, v_cache: Tensor) -> dict[str, Tensor | int]:
        token, head = (2, 1) if self.plans[kernel].hnd else (1, 2)
        values: dict[str, Tensor | int] = {"k_cache": k_cache, "v_cache": v_cache}
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            values[f"{name}_stride_block"] = cache.stride(0)
            values[f"{name}_stride_token"] = cache.stride(token)
            values[f"{name}_stride_head"] = cache.stride(head)
        return values

    def write_kv(
        self, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor
    ) -> Fault:
        """Tokens into their slots."""
        num_tokens = slot_mapping.shape[0]
        num_slots = k_cache.shape[0] * self.plans["write_kv"].constant("BLOCK_SIZE")
        values = {
            **self._caches("write_kv", k_cache, v_cache), **rows_of(k=k, v=v),
            "slot_mapping": slot_mapping, "num_tokens": num_tokens, "num_slots": num_slots,
        }  # fmt: skip
        return self._launch("write_kv", num_tokens, "TILE_TOKENS", values)

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
        rows = lse.shape[0] * lse.shape[1]
        tensors = rows_of(out=out, lse=lse, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
        values = {**tensors, "num_tokens": lse.shape[0], "num_rows": rows}
        return self._launch("merge_states", rows, "TILE_ROWS", values)

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, src_to_dst: Tensor) -> Fault:
        """Blocks onto blocks."""
        num_pairs = src_to_dst.shape[0]
        values = {
            **self._caches("copy_blocks", k_cache, v_cache), "src_to_dst": src_to_dst,
            "num_pairs": num_pairs, "num_blocks": k_cache.shape[0],
        }  # fmt: skip
        return self._launch("copy_blocks", num_pairs, "PARTS", values)


def rows_of(**tensors: Tensor) -> dict[str, Tensor | int]:
    """[token, head, ..] tensors and their strides, by the names of launch arguments."""
    values: dict[str, Tensor | int] = {}
    for name, tensor in tensors.items():
        values[name] = tensor
        values[f"{name}_stride_token"] = tensor.stride(0)
        values[f"{name}_stride_head"] = tensor.stride(1)
    return values
