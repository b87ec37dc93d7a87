"""The block table: a row of block ids for each running sequence, on the host and on the device.

It knows no block manager: ids come with the records of a step, and only changes travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from pagegen.errors import CacheError
from pagegen.runtime.batch import SequenceInput
from pagegen.runtime.staging import Staging

EMPTY = -1  # no block


class BlockTable:
    """Rows of up to max_blocks ids. The last row stays empty and stands for padding."""

    def __init__(
        self, max_num_seqs: int, max_blocks: int, block_size: int, device: torch.device
    ) -> None:
        self.max_blocks = max_blocks
        self.block_size = block_size
        self.padding_row = max_num_seqs
        self._ids = np.full((max_num_seqs + 1, max_blocks), EMPTY, np.int32)
        self._used = np.zeros(max_num_seqs + 1, np.int64)  # ids of each row
        self._on_gpu = device.type == "cuda"
        self._table = torch.from_numpy(self._ids).to(device)  # on a CPU the same memory
        self._gathered = torch.empty(max_num_seqs * max_blocks, dtype=torch.int32, device=device)
        self._staging = Staging(1024, device)

    def update(self, sequences: Sequence[SequenceInput], rows: Any, needed: Any) -> None:
        """Take over changed block ids. rows and needed: row and blocks used of each sequence.

        Raises CacheError, and changes nothing, when a sequence lacks a block or has too many.
        """
        count = len(sequences)
        added = np.fromiter((len(one.block_ids) for one in sequences), np.int64, count)
        firsts = np.fromiter((one.first_block for one in sequences), np.int64, count)
        changed = np.flatnonzero(added)
        used = self._used[rows]
        gap = changed[(firsts[changed] > used[changed]) | (firsts[changed] < 0)]
        if gap.size:
            i = int(gap[0])
            raise CacheError(
                f"row {rows[i]}: blocks from {firsts[i]} on, after {used[i]}",
                allowed=f"first_block 0 to {used[i]}",
            )
        used[changed] = firsts[changed] + added[changed]
        wrong = np.flatnonzero((needed > used) | (used > self.max_blocks))
        if wrong.size:
            i = int(wrong[0])
            raise CacheError(
                f"row {rows[i]}: {used[i]} blocks for {needed[i]} blocks of tokens",
                allowed=f"{needed[i]} to {self.max_blocks} blocks",
                remedy="give the sequence's block_ids, and first_block 0 when the row is new to it",
            )
        if changed.size:
            lists = [sequences[i].block_ids for i in changed.tolist()]
            self._write(lists, rows[changed], firsts[changed], added[changed])
            self._used[rows] = used

    def _write(self, lists: list[Sequence[int]], rows: Any, firsts: Any, added: Any) -> None:
        ends = added.cumsum()
        total = int(ends[-1])
        places = (rows * self.max_blocks + firsts - ends + added).repeat(added) + np.arange(total)
        ids = np.fromiter(chain.from_iterable(lists), np.int32, total)
        self._ids.reshape(-1)[places] = ids
        if self._on_gpu:
            self._staging.begin(2 * total)
            place_words, place_tensor = self._staging.words(total)
            id_halves, id_tensor = self._staging.halves(total)
            place_words[:], id_halves[:] = places, ids
            self._staging.send()
            self._table.view(-1).index_copy_(0, place_tensor, id_tensor)

    def slots(self, rows: Any, positions: Any) -> Any:
        """Slots of tokens, int64: each token's row and position in its sequence."""
        columns, offsets = np.divmod(positions, self.block_size)
        return self._ids[rows, columns].astype(np.int64) * self.block_size + offsets

    def gather(self, rows: torch.Tensor, max_blocks: int) -> torch.Tensor:
        """The rows' first max_blocks columns, [num_rows, max_blocks] int32, in a buffer that
        persists: on the device, in one launch."""
        out = self._gathered[: rows.shape[0] * max_blocks].view(-1, max_blocks)
        if not self._on_gpu:  # numpy, because torch would wake its threads for a small copy
            np.copyto(out.numpy(), self._ids[rows.numpy(), :max_blocks])
            return out
        return torch.index_select(self._table[:, :max_blocks], 0, rows, out=out)
