"""Tiles of the Triton attention kernels: each with its reason, and none that cannot be launched."""

from __future__ import annotations

from itertools import product

import pytest

from pagegen.archs import ARCHS
from pagegen.lower import lower
from pagegen.lower.triton_tiles import decode_tilings, prefill_tilings
from pagegen.plan import Plan
from tests.specimens import specimen

TARGETS = [row.name for row in ARCHS]


def triton_plans(kernel: str, **changes: object) -> list[Plan]:
    plans = lower(specimen(backends=("triton",), kernels=(kernel,), **changes))
    return [plan for plan in plans if plan.kernel == kernel]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim", [32, 40, 64, 96, 128, 192, 256])
def test_tiles_are_powers_of_two_with_reasons(target: str, head_dim: int) -> None:
    for group, window, soft_cap in product((1, 4, 5, 71), (0, 40), (0.0, 5.0)):
        spec = specimen(
            num_q_heads=2 * group, head_dim=head_dim, head_dim_v=head_dim, window=window,
            soft_cap=soft_cap, archs=(target,),
        )  # fmt: skip
        for tiling in (*decode_tilings(spec, target), *prefill_tilings(spec, target)):
            for number in (tiling.tile_m, tiling.tile_n, tiling.num_warps):
                assert number & (number - 1) == 0
            assert tiling.tile_m >= 16 and tiling.tile_n >= 16
            assert tiling.reason


def test_a_plan_says_why_it_has_its_tiles() -> None:
    for kernel in ("decode", "prefill"):
        for plan in triton_plans(kernel):
            row = next(row for row in plan.constants if row.name == "TILE_N")
            assert row.reason


def test_only_limits_and_checks_may_put_values_on_a_stack() -> None:
    for head_dim in (64, 128, 256):
        for kernel in ("decode", "prefill"):
            for plan in triton_plans(kernel, head_dim=head_dim, head_dim_v=head_dim):
                assert plan.allow_stack == (plan.checked or plan.max_registers > 0)


def test_the_variants_of_a_large_model_on_hopper() -> None:
    shape = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "head_dim_v": 128}
    changes = {**shape, "block_size": 16, "archs": ("sm_90a",)}
    decode, prefill = (triton_plans(kernel, **changes) for kernel in ("decode", "prefill"))
    assert [plan.variant for plan in decode] == ["default", "n64", "checked"]
    assert [plan.variant for plan in prefill] == ["default", "m64", "checked"]
    assert decode[0].constant("TILE_N") == 32 and decode[1].constant("TILE_N") == 64
    # Parts of a sequence are as short whatever the tile.
    parts = {plan.constant("TILE_N") * plan.constant("MIN_SPLIT_TILES") for plan in decode}
    assert parts == {64}
    assert prefill[0].max_registers == 128


def test_decode_shares_a_kv_head_among_programs_when_its_group_is_large() -> None:
    for group, tiles in ((1, 1), (4, 1), (16, 1), (64, 1), (65, 2), (71, 2), (128, 2)):
        plan = triton_plans("decode", num_q_heads=group, num_kv_heads=1)[0]
        assert plan.constant("GROUP_TILES") == tiles
        assert plan.constant("GROUP_TILE") * tiles >= group
