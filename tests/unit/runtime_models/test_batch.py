"""Batch metadata against a reference that loops over tokens, and what the builder refuses."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from pagegen.errors import CacheError, RequestError
from pagegen.runtime.batch import Batch, Padding, SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.buckets import bucket, largest, round_up

ROWS, MAX_TOKENS, MAX_LEN = 6, 40, 64


def builder(block_size: int = 4) -> BatchBuilder:
    return BatchBuilder(
        block_size=block_size, max_num_seqs=ROWS, max_num_tokens=MAX_TOKENS, max_model_len=MAX_LEN
    )


@dataclass
class Live:
    """A sequence as a block manager sees it."""

    row: int
    length: int = 0
    blocks: list[int] = field(default_factory=list)
    sent: int = 0


def check(batch: Batch, inputs: list[SequenceInput], live: list[Live], block_size: int) -> None:
    """Every tensor, token by token."""
    pairs = list(zip(inputs, live, strict=True))
    ordered = [p for p in pairs if len(p[0].token_ids) == 1]
    num_decode = len(ordered)
    ordered += [p for p in pairs if len(p[0].token_ids) != 1]
    tokens, positions, slots, ends = [], [], [], {}
    for one, owner in ordered:
        for offset, token in enumerate(one.token_ids):
            position = one.position + offset
            tokens.append(token)
            positions.append(position)
            block = owner.blocks[position // block_size]
            slots.append(block * block_size + position % block_size)
        ends[one.row] = len(tokens)
    assert batch.token_ids.tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.slot_mapping.tolist() == slots
    wanted = [
        index for one in inputs for index in range(ends[one.row] - one.num_logits, ends[one.row])
    ]
    assert batch.logits_indices.tolist() == wanted
    parts: list[tuple[Any, list[tuple[SequenceInput, Live]]]] = [
        (batch.decode, ordered[:num_decode]),
        (batch.prefill, ordered[num_decode:]),
    ]
    for rows, members in parts:
        assert (rows is None) == (not members)
        if rows is None:
            continue
        assert rows.num_seqs == len(members)
        lengths = [one.position + len(one.token_ids) for one, _ in members]
        assert rows.seq_lens.tolist() == lengths
        assert rows.max_seq_len == max(lengths)
        for row, (_, owner), length in zip(rows.block_table, members, lengths, strict=True):
            used = -(-length // block_size)
            assert row[:used].tolist() == owner.blocks[:used]
    if batch.prefill is not None:
        sums = [0]
        for one, _ in ordered[num_decode:]:
            sums.append(sums[-1] + len(one.token_ids))
        assert batch.prefill.cu_seqlens_q.tolist() == sums
        assert batch.prefill.first_token == num_decode
        assert batch.prefill.max_seqlen_q == max(b - a for a, b in itertools.pairwise(sums))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_random_steps(block_size: int, seed: int) -> None:
    """Sequences come, grow, have their last block replaced, roll back and leave their row."""
    rng = random.Random(seed)
    make = builder(block_size)
    rows: list[Live | None] = [None] * ROWS
    for _ in range(60):
        chosen = rng.sample(range(ROWS), rng.randint(1, ROWS))
        inputs, live, budget = [], [], MAX_TOKENS
        for row in chosen:
            one = rows[row]
            if one is None or rng.random() < 0.1:
                one = rows[row] = Live(row)
            if one.length and rng.random() < 0.1:  # copy-on-write of the last block
                one.blocks[-1] = rng.randrange(10**6)
                one.sent = len(one.blocks) - 1
            if one.length and rng.random() < 0.1:  # tokens taken back
                one.length = rng.randrange(one.length)
                one.sent = min(one.sent, one.length // block_size)
                del one.blocks[-(-one.length // block_size) :]
            count = rng.choice([1, 1, rng.randint(1, 9)])
            count = min(count, budget, MAX_LEN - one.length)
            if count < 1:
                continue
            budget -= count
            while len(one.blocks) * block_size < one.length + count:
                one.blocks.append(rng.randrange(10**6))
            inputs.append(
                SequenceInput(
                    row,
                    [rng.randrange(1000) for _ in range(count)],
                    one.length,
                    one.blocks[one.sent :],
                    one.sent,
                    num_logits=rng.randint(0, count),
                )
            )
            one.length, one.sent = one.length + count, len(one.blocks)
            live.append(one)
        if inputs:
            check(make.build(inputs), inputs, live, block_size)


def test_padding_stands_behind_real_rows_at_fixed_addresses() -> None:
    make = builder()
    padding = Padding(num_seqs=5, max_seq_len=30)
    empty = make.build([], padding=padding)
    assert empty.decode is not None and empty.prefill is None
    assert empty.decode.seq_lens.tolist() == [0] * 5
    assert empty.slot_mapping.tolist() == [-1] * 5
    assert empty.decode.block_table.eq(-1).all()
    assert empty.decode.block_table.shape == (5, 8)
    make.build([SequenceInput(2, [7, 8, 9], 0, [11])])
    batch = make.build(
        [SequenceInput(2, [5], 3), SequenceInput(0, [6], 8, [1, 2, 3])], padding=padding
    )
    assert batch.decode is not None
    assert batch.token_ids.tolist() == [5, 6, 0, 0, 0]
    assert batch.positions.tolist() == [3, 8, 0, 0, 0]
    assert batch.slot_mapping.tolist() == [47, 12, -1, -1, -1]
    assert batch.decode.seq_lens.tolist() == [4, 9, 0, 0, 0]
    assert batch.decode.max_seq_len == 30
    assert batch.decode.block_table[:, 0].tolist() == [11, 1, -1, -1, -1]
    assert batch.logits_indices.tolist() == [0, 1, 2, 3, 4]
    for name in ("token_ids", "positions", "slot_mapping", "logits_indices"):
        assert getattr(batch, name).data_ptr() == getattr(empty, name).data_ptr()
    for name in ("block_table", "seq_lens"):
        assert getattr(batch.decode, name).data_ptr() == getattr(empty.decode, name).data_ptr()
        assert getattr(batch.decode, name).stride() == getattr(empty.decode, name).stride()


def test_a_row_forgets_the_blocks_of_the_sequence_before() -> None:
    make = builder()
    make.build([SequenceInput(0, [1], 10, [5, 6, 7])])
    with pytest.raises(CacheError, match="row 0: 1 blocks for 2 blocks"):
        make.build([SequenceInput(0, [1], 4, [9])])


REFUSED: list[tuple[list[SequenceInput], type[Exception], str]] = [
    ([], RequestError, "0 sequences"),
    ([SequenceInput(0, [], 0, [1])], RequestError, "row 0: 0 tokens"),
    ([SequenceInput(0, [1], -1, [1])], RequestError, "position -1"),
    ([SequenceInput(6, [1], 0, [1])], RequestError, "rows 6 to 6"),
    ([SequenceInput(-1, [1], 0, [1])], RequestError, "rows -1 to -1"),
    ([SequenceInput(1, [1], 0, [1]), SequenceInput(1, [1], 0, [1])], RequestError, "in row 1"),
    ([SequenceInput(0, [1] * 41, 0, [1] * 11)], RequestError, "41 tokens"),
    ([SequenceInput(0, [1], 64, [1] * 17)], RequestError, "positions 0 to 63"),
    ([SequenceInput(0, [1], 0, [1], num_logits=2)], RequestError, "logits of 2"),
    ([SequenceInput(0, [1], 4, [1])], CacheError, "1 blocks for 2 blocks"),
    ([SequenceInput(0, [1], 0)], CacheError, "0 blocks for 1 blocks"),
    ([SequenceInput(0, [1], 5, [1], first_block=1)], CacheError, "blocks from 1 on, after 0"),
    ([SequenceInput(0, [1], 0, [1] * 17)], CacheError, "17 blocks"),
]


@pytest.mark.parametrize(("inputs", "error", "message"), REFUSED)
def test_records_that_no_batch_can_hold_are_refused(
    inputs: list[SequenceInput], error: type[Exception], message: str
) -> None:
    make = builder()
    with pytest.raises(error, match=message):
        make.build(inputs)


@pytest.mark.parametrize(
    ("inputs", "padding"),
    [
        ([SequenceInput(0, [1, 2], 0, [1])], Padding(2, 8)),
        ([SequenceInput(0, [1], 8, [1, 2, 3])], Padding(2, 8)),
        ([SequenceInput(i, [1], 0, [1]) for i in range(3)], Padding(2, 8)),
        ([], Padding(7, 8)),
        ([], Padding(2, 65)),
        ([], Padding(0, 8)),
    ],
)
def test_what_a_captured_shape_cannot_hold_is_refused(
    inputs: list[SequenceInput], padding: Padding
) -> None:
    with pytest.raises(RequestError):
        builder().build(inputs, padding=padding)


def test_a_refused_batch_leaves_the_rows_as_they_were() -> None:
    make = builder()
    make.build([SequenceInput(0, [1], 3, [5])])
    with pytest.raises(CacheError):
        make.build([SequenceInput(0, [1], 4, [6], first_block=1), SequenceInput(1, [1], 0)])
    batch = make.build([SequenceInput(0, [1], 3)])
    assert batch.slot_mapping.tolist() == [23]


def test_sizes_below_1_are_refused() -> None:
    with pytest.raises(RequestError, match="at least 1 each"):
        BatchBuilder(block_size=4, max_num_seqs=0, max_num_tokens=1, max_model_len=1)


def test_buckets_are_steps_of_an_eighth() -> None:
    before = 0
    for size in range(3000):
        number = bucket(size)
        assert number in (before, before + 1)
        assert size <= largest(number) <= size + size // 8
        assert bucket(largest(number)) == number
        assert round_up(size) == largest(number)
        before = number
