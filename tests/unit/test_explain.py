"""The roofline: visible pairs counted by formula equal those counted one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pagegen.errors import SpecError
from pagegen.explain import Roof, Shape, floor, parse_shape, visible_pairs
from tests.specimens import specimen

LENGTHS = st.integers(1, 60)


@given(new=LENGTHS, cached=st.integers(0, 60), window=st.integers(0, 70))
def test_visible_pairs_of_a_causal_mask(new: int, cached: int, window: int) -> None:
    counted = 0
    for row in range(cached, cached + new):
        counted += sum(1 for key in range(row + 1) if not window or key > row - window)
    spec = specimen(window=window)
    assert visible_pairs(spec, Shape("prefill", 1, new, cached)) == counted


def test_decode_moves_each_key_and_value_once() -> None:
    spec = specimen(num_q_heads=32, num_kv_heads=8, head_dim=128, head_dim_v=128)
    result = floor(spec, parse_shape("decode:64x8192"), Roof())
    kv = 64 * 8192 * 8 * (128 + 128) * 2
    assert result.num_bytes == kv + 2 * 64 * 32 * 128 * 2
    assert result.bound == "memory"
    assert result.us == pytest.approx(481, abs=1)


def test_prefill_of_a_long_prompt_is_bound_by_arithmetic() -> None:
    spec = specimen(num_q_heads=32, num_kv_heads=8, head_dim=128, head_dim_v=128)
    result = floor(spec, parse_shape("prefill:1x16384"), Roof())
    assert result.flops == 4 * 128 * 32 * (16384 * 16385 // 2)
    assert result.bound == "compute"


@pytest.mark.parametrize(
    "text", ["", "decode", "decode:0x5", "decode:4x8+2", "prefill:1x", "decode:1x1;rm", "x:1x1"]
)
def test_a_wrong_shape_names_the_form(text: str) -> None:
    with pytest.raises(SpecError, match="decode:SEQSxCONTEXT"):
        parse_shape(text)
