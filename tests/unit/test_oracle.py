"""The oracle on inputs whose answer is known by arithmetic: positions, owners, empty rows."""

from __future__ import annotations

import math

import pytest
import torch

from pagegen.oracle import Attention, decode_attention, merge_states, paged_attention

PLAIN = Attention("NHD", causal=True, window=0, soft_cap=0.0)


def positions(
    num_tokens: int, block_size: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """K = 0 and V[token i] = i: the output is the mean of the visible positions."""
    num_blocks = math.ceil(num_tokens / block_size)
    v = torch.full((num_blocks * block_size,), math.nan)
    v[:num_tokens] = torch.arange(num_tokens)
    v_cache = v.reshape(num_blocks, block_size, 1, 1).expand(-1, -1, 1, 8).clone()
    table = torch.tensor([[*range(num_blocks), -1, 2**31 - 1]], dtype=torch.int32)
    return torch.zeros_like(v_cache), v_cache, table


@pytest.mark.parametrize("seq_len", [1, 3, 4, 5, 63, 65])
def test_decode_is_the_mean_of_all_positions(seq_len: int) -> None:
    k_cache, v_cache, table = positions(seq_len)
    out, lse = decode_attention(
        torch.zeros(1, 2, 8), k_cache, v_cache, table, torch.tensor([seq_len]), PLAIN, 1.0
    )
    assert out.flatten().tolist() == pytest.approx([(seq_len - 1) / 2] * 16)
    assert lse.flatten().tolist() == pytest.approx([math.log(seq_len)] * 2)


def test_causal_is_aligned_to_the_end() -> None:
    k_cache, v_cache, table = positions(5)
    out, _ = paged_attention(
        torch.zeros(2, 1, 8), k_cache, v_cache, table, torch.tensor([5]), torch.tensor([0, 2]),
        PLAIN, 1.0,
    )  # fmt: skip
    assert out[:, 0, 0].tolist() == pytest.approx([1.5, 2.0])


def test_a_window_counts_the_query_itself() -> None:
    k_cache, v_cache, table = positions(200)
    attention = Attention("NHD", causal=True, window=8, soft_cap=0.0)
    out, lse = decode_attention(
        torch.zeros(1, 1, 8), k_cache, v_cache, table, torch.tensor([200]), attention, 1.0
    )
    assert out[0, 0, 0] == pytest.approx(sum(range(192, 200)) / 8)
    assert lse[0, 0] == pytest.approx(math.log(8))


def test_rows_without_a_visible_key_are_zero_and_minus_infinity() -> None:
    k_cache, v_cache, table = positions(2)
    out, lse = paged_attention(
        torch.zeros(5, 1, 8), k_cache, v_cache + 1, table, torch.tensor([2]),
        torch.tensor([0, 5]), PLAIN, 1.0,
    )  # fmt: skip
    assert out[:, 0, 0].tolist() == pytest.approx([0, 0, 0, 1.0, 1.5])
    assert lse[:, 0].tolist() == pytest.approx([-math.inf] * 3 + [0.0, math.log(2)])


def test_merging_two_halves_weighs_them_by_their_keys() -> None:
    out_a, out_b = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    lse_a, lse_b = torch.tensor([[math.log(1024)]]), torch.tensor([[math.log(64)]])
    out, lse = merge_states(out_a, lse_a, out_b, lse_b)
    assert out[0, 0, 0] == pytest.approx(64 / 1088, abs=1e-6)
    assert lse[0, 0] == pytest.approx(math.log(1088), abs=1e-6)


def test_merging_empty_sides_selects_and_never_multiplies() -> None:
    nan, x = torch.full((1, 1, 4), math.nan), torch.full((1, 1, 4), 3.0)
    empty = torch.tensor([[-math.inf]])
    out, lse = merge_states(x, torch.zeros(1, 1), nan, empty)
    assert out.tolist() == x.tolist() and lse.item() == 0.0
    out, lse = merge_states(nan, empty, nan, -empty)
    assert out.abs().sum() == 0 and lse.item() == -math.inf
