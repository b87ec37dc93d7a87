"""The KV cache as tensors: one pool on the device for all layers, one in host memory for swapping.

It knows no sequence: which block belongs to whom is the block manager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pagegen.dtypes import dtype
from pagegen.errors import CacheError
from pagegen.manifest import SpecFacts
from pagegen.runtime.loader import manifest_of
from pagegen.runtime.transfer import Transfer, runs_of, to_device

Pairs = Sequence[tuple[int, int]]
VECTOR_BYTES = 16  # kernels demand that rows start at multiples of it


def block_bytes(facts: SpecFacts, num_layers: int) -> int:
    """Bytes of one block: K and V of block_size tokens in every layer."""
    elements = facts.block_size * facts.num_kv_heads * (facts.head_dim + facts.head_dim_v)
    return num_layers * elements * dtype(facts.dtype_kv).num_bytes


def num_blocks_in(num_bytes: int, facts: SpecFacts, num_layers: int) -> int:
    """Blocks that fit in a budget of `num_bytes`. Raises CacheError if none does."""
    each = block_bytes(facts, num_layers)
    if num_bytes < each:
        raise CacheError(
            f"{num_bytes} bytes for the KV cache",
            allowed=f"at least one block of {each} bytes: {facts.block_size} tokens in "
            f"{num_layers} layers",
            remedy="free memory on the device, or give the cache a larger share of it",
        )
    return num_bytes // each


def device_budget_bytes(device: torch.device | str, fraction: float) -> int:
    """Bytes the cache may take so that `fraction` of a GPU's memory is in use with it.

    What is in use now, by whichever process, counts; call it after the model is loaded and has run
    its largest step once. Raises CacheError for a fraction outside (0, 1], or when nothing is left.
    """
    if not 0.0 < fraction <= 1.0:
        raise CacheError(f"a fraction of {fraction}", allowed="more than 0, at most 1")
    cuda: Any = torch.cuda
    free, total = cuda.mem_get_info(torch.device(device))
    # What torch's allocator holds but does not use can become the cache's.
    free += cuda.memory_reserved(device) - cuda.memory_allocated(device)
    left = int(free - (1.0 - fraction) * total)
    if left <= 0:
        raise CacheError(
            f"{fraction:.0%} of the GPU's memory, {1 - free / total:.0%} of it in use already",
            remedy="a larger fraction, a smaller model, or another GPU",
        )
    return left


class KvCache:
    """K and V of all layers in one pool, and a pinned pool on the host for swapped blocks.

    pool       [num_blocks, num_layers, K of a layer | V of a layer], flat in the last dimension
    host_pool  [num_host_blocks, ...] likewise, pinned if the device is a GPU; may have no block
    k, v       of each layer, as the package's ops take them: NHD [num_blocks, block_size,
               num_kv_heads, dim] or HND [num_blocks, num_kv_heads, block_size, dim]

    All that a block holds is one piece of memory, so that swapping a block is one copy at the
    bus's full speed and not two for each layer, and copy_blocks is one launch for all layers. The
    ops take strides, so the layers' views cost nothing. Fresh memory is not cleared: no op reads
    what was not written.
    """

    def __init__(
        self,
        ops: Any,
        num_layers: int,
        num_blocks: int,
        *,
        device: torch.device | str = "cpu",
        num_host_blocks: int = 0,
    ) -> None:
        """ops: a loaded package. Raises CacheError for counts that no memory is enough for."""
        facts = manifest_of(ops).spec
        if num_layers < 1 or num_blocks < 1 or num_host_blocks < 0:
            raise CacheError(
                f"{num_layers} layers, {num_blocks} blocks, {num_host_blocks} host blocks",
                allowed="at least 1 layer, 1 block and 0 host blocks",
            )
        self.ops = ops
        self.facts = facts
        self.device = torch.device(device)
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_bytes = block_bytes(facts, num_layers)
        element = getattr(torch, dtype(facts.dtype_kv).torch)
        tokens = facts.block_size * facts.num_kv_heads
        sizes = tokens * facts.head_dim, tokens * facts.head_dim_v
        if any(size * element.itemsize % VECTOR_BYTES for size in sizes):
            raise CacheError(
                f"a layer's K and V of {sizes} elements in a block",
                allowed=f"multiples of {VECTOR_BYTES} bytes",
                remedy="a larger block_size in the spec",
            )
        shape = num_layers, sum(sizes)
        pinned = self.device.type == "cuda"
        try:
            self.pool = torch.empty((num_blocks, *shape), dtype=element, device=self.device)
            self.host_pool = torch.empty(
                (num_host_blocks, *shape), dtype=element, pin_memory=pinned and num_host_blocks > 0
            )
        except RuntimeError as error:  # torch's out-of-memory errors are of this class
            raise CacheError(
                f"no memory for {num_blocks} blocks and {num_host_blocks} host blocks of "
                f"{self.block_bytes} bytes: {error}",
                remedy="fewer blocks",
            ) from error
        views = [self._views(self.pool[:, layer]) for layer in range(num_layers)]
        self.k = tuple(k for k, _ in views)
        self.v = tuple(v for _, v in views)
        # Every (block, layer) as a block of its own, for copies of all layers at once.
        self._all_k, self._all_v = self._views(self.pool.view(num_blocks * num_layers, sum(sizes)))
        self._stream: Any = torch.cuda.Stream(self.device) if pinned else None  # type: ignore[no-untyped-call]

    def _views(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of [blocks, K | V], in the package's layout."""
        facts = self.facts
        axes = [facts.block_size, facts.num_kv_heads]
        if facts.layout == "HND":
            axes.reverse()
        size = axes[0] * axes[1] * facts.head_dim
        blocks = flat.shape[0]
        return (
            flat[:, :size].view(blocks, *axes, facts.head_dim),
            flat[:, size:].view(blocks, *axes, facts.head_dim_v),
        )

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy blocks (source, destination) in all layers: one launch on the current stream.

        Copies happen at once and in no order, so no destination may be in another pair. Raises
        CacheError naming the pair that breaks this, or is not in the pool.
        """
        if not pairs:
            return
        ids = self._checked(pairs, self.num_blocks, self.num_blocks)
        written = set(ids[:, 1].tolist())
        both = written.intersection(ids[:, 0].tolist())
        if both:
            raise CacheError(
                f"block {min(both)} is source and destination of one copy_blocks",
                remedy="two calls, one after the other",
            )
        layers = np.arange(self.num_layers, dtype=np.int64)[:, None]
        ids = (ids[:, None, :] * self.num_layers + layers).reshape(-1, 2)
        self.ops.copy_blocks(self._all_k, self._all_v, to_device(ids, self.device))

    def swap_out(self, pairs: Pairs) -> Transfer:
        """Copy blocks to the host pool, by pairs (block, host_block).

        What the current stream was given so far runs before; what it is given later does not wait:
        a block may be written again when the transfer is done(), or after its join().
        """
        return self._swap(pairs, outward=True)

    def swap_in(self, pairs: Pairs) -> Transfer:
        """Copy host blocks back, by pairs (block, host_block).

        A block may be read, and its host block written again, when the transfer is done(); or read
        by what the current stream is given after join(). Transfers run one after the other.
        """
        return self._swap(pairs, outward=False)

    def _swap(self, pairs: Pairs, *, outward: bool) -> Transfer:
        if not pairs:
            return Transfer(None)
        ids = self._checked(pairs, self.num_blocks, self.num_host_blocks, host=True)
        runs = runs_of(ids)
        if self._stream is None:
            self._copy(runs, outward)
            return Transfer(None)
        cuda: Any = torch.cuda
        self._stream.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(self._stream):
            self._copy(runs, outward)
            return Transfer(self._stream.record_event())

    def _copy(self, runs: list[tuple[int, int, int]], outward: bool) -> None:
        for block, host_block, count in runs:
            here = self.pool[block : block + count]
            there = self.host_pool[host_block : host_block + count]
            target, source = (there, here) if outward else (here, there)
            target.copy_(source, non_blocking=True)

    def _checked(self, pairs: Pairs, first: int, second: int, *, host: bool = False) -> Any:
        """The pairs as int64 [num_pairs, 2]: each id in its pool, and written only once."""
        ids = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        for column, count in ((0, first), (1, second)):
            bad = np.flatnonzero((ids[:, column] < 0) | (ids[:, column] >= count))
            if bad.size:
                what = "host block" if host and column else "block"
                raise CacheError(
                    f"pair {tuple(ids[bad[0]].tolist())}: no {what} {ids[bad[0], column]}",
                    allowed=f"0 to {count - 1}" if count else "none: the pool is empty",
                )
        for column in (0, 1) if host else (1,):
            values, counts = np.unique(ids[:, column], return_counts=True)
            if values.size < len(ids):
                raise CacheError(f"block {values[counts > 1][0]} is in two pairs of one copy")
        return ids
