"""A sequence's tokens and the blocks that hold them.

It decides nothing: the block manager fills the table, the caller appends tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagegen.errors import CacheError
from pagegen.runtime.block_pool import Ids

if TYPE_CHECKING:
    import torch

    from pagegen.runtime.prefix_cache import Hold

Item = TypeVar("Item", bound=np.generic)
Tokens = NDArray[np.int32]  # [num_tokens] token ids


@dataclass(frozen=True)
class Namespace:
    """Whose KV this is: equal tokens share blocks only within an equal namespace.

    Everything that changes the KV of a token besides the tokens before it belongs here: the
    adapter, a tenant's salt, the version of the weights, the digest of an image.
    """

    adapter: str = ""
    salt: str = ""
    extra: tuple[Hashable, ...] = ()


def as_tokens(tokens: ArrayLike) -> Tokens:
    """Token ids as int32. Raises CacheError for what is not a flat list of ids."""
    try:
        found = np.asarray(tokens)
        if found.dtype == np.int32 and found.ndim == 1:
            return found.copy()
        whole = found.size == 0 or np.issubdtype(found.dtype, np.integer)
        if not whole or found.ndim > 1:
            raise ValueError(f"shape {list(found.shape)}, dtype {found.dtype}")
        if found.size and not -(2**31) <= found.min() <= found.max() < 2**31:
            raise ValueError(f"ids from {found.min()} to {found.max()}")
    except (TypeError, ValueError, OverflowError) as error:
        raise CacheError(
            f"not token ids: {error}", allowed="a flat list or array of 32-bit integers"
        ) from error
    return found.astype(np.int32).reshape(-1)


class Sequence:
    """Tokens [0, num_tokens) and a block table of [0, num_blocks) columns.

    Column i holds positions [i * block_size, (i + 1) * block_size). The intervals along it:

        0 .. first_block          left behind by the window: null
          .. num_published        in the prefix cache, perhaps shared, never written again
          .. num_blocks           this sequence's own, but for a tail shared after a fork

    `num_computed` tokens have their KV in the cache; slots end at `num_slots`.
    """

    __slots__ = (
        "_dirty",
        "_table",
        "_tokens",
        "first_block",
        "holds",
        "host_blocks",
        "is_freed",
        "is_publishing",
        "is_tail_shared",
        "namespace",
        "num_blocks",
        "num_computed",
        "num_published",
        "num_slots",
        "num_tokens",
    )

    def __init__(self, tokens: ArrayLike, namespace: Namespace) -> None:
        self._tokens = as_tokens(tokens)
        self.num_tokens = len(self._tokens)
        self.namespace = namespace
        self._table: Ids = np.zeros(0, np.int64)
        self._dirty = 0
        self.is_freed = False
        self.clear()

    def clear(self) -> None:
        """Forget all blocks, as after a preemption. For the manager."""
        self.first_block = self.num_blocks = self.num_slots = 0
        self.num_computed = self.num_published = 0
        self.is_publishing = True
        self.is_tail_shared = False
        self.holds: list[Hold] = []
        self.host_blocks: Ids | None = None
        self._dirty = 0

    @property
    def tokens(self) -> Tokens:
        """A view of the token ids: [num_tokens] int32."""
        return self._tokens[: self.num_tokens]

    def tokens_from(self, begin: int, end: int) -> list[int]:
        """The ids at positions [begin, end), as plain numbers."""
        ids: list[int] = self._tokens[begin:end].tolist()
        return ids

    @property
    def block_table(self) -> Ids:
        """A view of the block ids: [num_blocks] int64. Valid until the manager is called again."""
        return self._table[: self.num_blocks]

    def append(self, tokens: int | Items[int] | Tokens) -> None:
        """Add tokens; O(1) each on average. Their slots come with the manager's allocate."""
        if isinstance(tokens, int):
            end = self.num_tokens + 1
            if end > len(self._tokens):
                self._tokens = grown(self._tokens, self.num_tokens, end)
            try:
                self._tokens[end - 1] = tokens
            except OverflowError as error:
                raise CacheError(f"not a token id: {tokens}", allowed="32 bits") from error
        else:
            more = as_tokens(tokens)
            end = self.num_tokens + len(more)
            if end > len(self._tokens):
                self._tokens = grown(self._tokens, self.num_tokens, end)
            self._tokens[self.num_tokens : end] = more
        self.num_tokens = end

    def write_block_table(self, row: NDArray[np.int32] | torch.Tensor) -> tuple[int, int]:
        """Bring a table row up to date: writes only columns that changed since the last call.

        row: [max_blocks] int32, numpy or torch on the CPU; the same row each time, or one that
        `forget_row` announced. Columns past num_blocks are left as they are. Returns the columns
        written, [begin, end).
        """
        begin, end = min(self._dirty, self.num_blocks), self.num_blocks
        if end > len(row):
            raise CacheError(
                f"a table of {end} blocks does not fit a row of {len(row)}",
                remedy="make rows max_model_len / block_size columns wide, rounded up",
            )
        if begin < end:
            target = row if isinstance(row, np.ndarray) else row.numpy()
            target[begin:end] = self._table[begin:end]
        self._dirty = end
        return begin, end

    def take_changes(self) -> tuple[int, list[int]]:
        """What write_block_table would write, for a table that is kept elsewhere: the first column
        that changed since the last call of either, and the block ids from there on."""
        begin, end = self._dirty, self.num_blocks
        self._dirty = end
        return (begin, self._table[begin:end].tolist()) if begin < end else (end, [])

    def forget_row(self) -> None:
        """The next of them gives all columns: the sequence moved to another row."""
        self._dirty = 0

    def reserve(self, num_blocks: int) -> None:
        """Make room for so many columns at once. For the manager."""
        if num_blocks > len(self._table):
            self._table = grown(self._table, self.num_blocks, num_blocks)

    def extend_table(self, ids: Ids) -> None:
        """Add columns. For the manager."""
        begin = self.num_blocks
        self.num_blocks = end = begin + len(ids)
        if end > len(self._table):
            self._table = grown(self._table, begin, end)
        self._table[begin:end] = ids

    def replace_blocks(self, begin: int, ids: Ids | int, count: int = 1) -> None:
        """Put other blocks in `count` columns. For the manager."""
        self._table[begin : begin + count] = ids
        self._dirty = min(self._dirty, begin)

    def cut_table(self, num_blocks: int) -> None:
        """Drop columns at the end. For the manager."""
        self.num_blocks = num_blocks
        self._dirty = min(self._dirty, num_blocks)


def grown(array: NDArray[Item], used: int, needed: int) -> NDArray[Item]:
    """A copy with room for at least `needed`, and then some, so that appends cost O(1)."""
    larger = np.empty(needed + needed // 2 + 8, array.dtype)
    larger[:used] = array[:used]
    return larger
