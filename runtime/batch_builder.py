"""Builds batches: numpy arithmetic in buffers that persist, and one copy to the device.

It knows no scheduler: what to run comes as SequenceInputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from pagegen.errors import RequestError
from pagegen.runtime.batch import Batch, DecodeRows, Padding, PrefillRows, SequenceInput
from pagegen.runtime.block_table import BlockTable
from pagegen.runtime.buckets import round_up
from pagegen.runtime.staging import Staging


class BatchBuilder:
    """Makes the tensors of a step for up to max_num_seqs sequences and max_num_tokens tokens.

    The device gets a step in one copy from pinned memory, in two when block ids changed, and
    gathers the block table in one launch. No call waits for the device, unless that has not yet
    fetched the batch before the last.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_tokens: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """max_model_len: tokens of the longest sequence. Raises RequestError for sizes below 1."""
        sizes = (block_size, max_num_seqs, max_num_tokens, max_model_len)
        if min(sizes) < 1:
            raise RequestError(f"sizes {sizes} of a batch", allowed="at least 1 each")
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_tokens = max_num_tokens
        self.max_model_len = max_model_len
        self.device = torch.device(device)
        max_blocks = -(-max_model_len // block_size)
        self._table = BlockTable(max_num_seqs, max_blocks, block_size, self.device)
        most = max(max_num_tokens, max_num_seqs)
        self._counting = np.arange(most)
        self._staging = Staging(4 * most + 2 * max_num_seqs + 2, self.device)

    def build(self, sequences: Sequence[SequenceInput], *, padding: Padding | None = None) -> Batch:
        """The batch of one step.

        padding: pad to this shape; then each sequence runs one token, logits_indices names every
        row, and sequences may be empty. Batches of one padding have their tensors at the same
        addresses, so that a graph captured on one replays the next.

        Raises RequestError for records that contradict each other or the builder's limits, and
        CacheError for a token without a block; the builder is then as it was.
        """
        lens = [len(one.token_ids) for one in sequences]
        order = _decode_first(lens)
        ordered = sequences if order is None else [sequences[i] for i in order]
        count = len(ordered)
        rows = np.fromiter((one.row for one in ordered), np.int64, count)
        q_lens = np.fromiter(lens if order is None else (lens[i] for i in order), np.int64, count)
        starts = np.fromiter((one.position for one in ordered), np.int64, count)
        wanted = np.fromiter((one.num_logits for one in ordered), np.int64, count)
        seq_lens = starts + q_lens
        ends = q_lens.cumsum()
        num_tokens = int(ends[-1]) if count else 0
        self._check(rows, q_lens, starts, wanted, num_tokens, padding)
        num_blocks = (seq_lens + (self.block_size - 1)) // self.block_size
        self._table.update(ordered, rows, num_blocks)

        num_rows, width = count, num_tokens
        num_decode = int(np.count_nonzero(q_lens == 1))
        max_blocks = min(round_up(int(num_blocks.max(initial=0))), self._table.max_blocks)
        logits = _last_tokens(ends, wanted, order)
        if padding is not None:
            num_rows = width = num_decode = padding.num_seqs
            max_blocks = -(-padding.max_seq_len // self.block_size)
            logits = self._counting[:num_rows]

        self._staging.begin()
        token_ids, token_ids_tensor = self._staging.words(width)
        positions, positions_tensor = self._staging.words(width)
        slots, slots_tensor = self._staging.words(width)
        logits_indices, logits_tensor = self._staging.words(len(logits))
        table_rows, rows_tensor = self._staging.words(num_rows)
        lengths, lengths_tensor = self._staging.halves(num_rows)
        offsets, offsets_tensor = self._staging.halves(num_rows - num_decode + 1)
        if num_rows > count:
            token_ids[count:], positions[count:], slots[count:] = 0, 0, -1
            table_rows[count:], lengths[count:] = self._table.padding_row, 0
        tokens = chain.from_iterable(one.token_ids for one in ordered)
        token_ids[:num_tokens] = np.fromiter(tokens, np.int64, num_tokens)
        counting = self._counting[:num_tokens]
        np.add((seq_lens - ends).repeat(q_lens), counting, out=positions[:num_tokens])
        slots[:num_tokens] = self._table.slots(rows.repeat(q_lens), positions[:num_tokens])
        logits_indices[:] = logits
        table_rows[:count] = rows
        lengths[:count] = seq_lens
        offsets[0] = 0
        offsets[1:] = ends[num_decode:] - num_decode
        self._staging.send()
        table = self._table.gather(rows_tensor, max_blocks)

        decode = prefill = None
        if num_decode:
            decode = DecodeRows(
                num_seqs=num_decode,
                max_seq_len=padding.max_seq_len if padding else int(seq_lens[:num_decode].max()),
                block_table=table[:num_decode],
                seq_lens=lengths_tensor[:num_decode],
            )
        if num_rows > num_decode:
            prefill = PrefillRows(
                first_token=num_decode,
                num_seqs=num_rows - num_decode,
                max_seqlen_q=int(q_lens[num_decode:].max()),
                max_seq_len=int(seq_lens[num_decode:].max()),
                block_table=table[num_decode:],
                seq_lens=lengths_tensor[num_decode:],
                cu_seqlens_q=offsets_tensor,
            )
        return Batch(
            token_ids=token_ids_tensor,
            positions=positions_tensor,
            slot_mapping=slots_tensor,
            logits_indices=logits_tensor,
            decode=decode,
            prefill=prefill,
        )

    def _check(
        self,
        rows: Any,
        q_lens: Any,
        starts: Any,
        wanted: Any,
        num_tokens: int,
        padding: Padding | None,
    ) -> None:
        """Refuse what no batch can be."""
        count, longest = len(rows), self.max_model_len
        fewest, room = 1, self.max_num_seqs
        if padding is not None:
            fewest, room, longest = 0, padding.num_seqs, padding.max_seq_len
            if not (1 <= room <= self.max_num_seqs and 1 <= longest <= self.max_model_len):
                limits = f"1 to {self.max_num_seqs} sequences of 1 to {self.max_model_len} tokens"
                raise RequestError(f"{padding}", allowed=limits)
        if not fewest <= count <= room or num_tokens > self.max_num_tokens:
            raise RequestError(
                f"a batch of {count} sequences and {num_tokens} tokens",
                allowed=f"{fewest} to {room} sequences, at most {self.max_num_tokens} tokens",
            )
        if count and not 0 <= int(rows.min()) <= int(rows.max()) < self.max_num_seqs:
            raise RequestError(
                f"rows {rows.min()} to {rows.max()}", allowed=f"0 to {self.max_num_seqs - 1}"
            )
        twice = np.flatnonzero(np.bincount(rows, minlength=1) > 1) if count else rows
        if twice.size:
            raise RequestError(f"two sequences in row {twice[0]}")
        most = q_lens if padding is None else np.ones_like(q_lens)
        bad = (q_lens < 1) | (q_lens > most) | (starts < 0) | (starts + q_lens > longest)
        bad |= (wanted < 0) | (wanted > q_lens)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise RequestError(
                f"row {rows[i]}: {q_lens[i]} tokens from position {starts[i]} on, logits of "
                f"{wanted[i]}",
                allowed=f"{'at least' if padding is None else 'exactly'} 1 token, positions 0 to "
                f"{longest - 1}, logits of no more than the tokens",
            )


def _decode_first(lens: list[int]) -> list[int] | None:
    """An order in which the sequences of one token come first; None: they do already."""
    decode = [i for i, length in enumerate(lens) if length == 1]
    if not decode or decode[-1] == len(decode) - 1:
        return None
    return decode + [i for i, length in enumerate(lens) if length != 1]


def _last_tokens(ends: Any, wanted: Any, order: list[int] | None) -> Any:
    """The last wanted[i] tokens of each sequence, the sequences as before they were ordered."""
    if order is not None:
        before = np.empty(len(order), np.int64)
        before[order] = np.arange(len(order))
        ends, wanted = ends[before], wanted[before]
    behind = wanted.cumsum()
    total = int(behind[-1]) if len(behind) else 0
    return (ends - behind).repeat(wanted) + np.arange(total)
