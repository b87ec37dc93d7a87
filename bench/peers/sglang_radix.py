"""SGLang's RadixCache: match, lock, evict, insert, unlock, as its scheduler does for a prompt."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

import torch

from bench.block_drivers import as_array
from bench.peers import Availability, import_peer
from bench.traces import Request

NAME = "sglang"
MODULE = "sglang.srt.mem_cache.radix_cache"


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer(MODULE)


class _Slots:
    """Counts free slots: the least that the tree asks of an allocator."""

    device = "cpu"

    def __init__(self, num_slots: int) -> None:
        self.num_free = num_slots

    def free_segment(self, indices: torch.Tensor, start_pos: int = 0) -> None:
        self.num_free += len(indices)


class SglangIndex:
    """The tree on the CPU, with slot numbers made beforehand."""

    name = NAME

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.api: Any = import_module(MODULE)
        self.block_size = block_size
        self.slots = _Slots(num_blocks * block_size)
        self.tree = self.api.RadixCache.create_simulated(
            mock_allocator=self.slots, page_size=block_size
        )

    def prepare(self, request: Request) -> tuple[array[int], torch.Tensor]:
        tokens = request.prompt()
        tokens = tokens[: len(tokens) // self.block_size * self.block_size]
        return as_array(tokens), torch.arange(len(tokens))

    def serve(self, made: tuple[array[int], torch.Tensor]) -> int:
        api, tree = self.api, self.tree
        tokens, values = made
        match = tree.match_prefix(api.MatchPrefixParams(key=api.RadixKey(tokens)))
        node, found = match.last_device_node, int(match.device_prefix_len)
        tree.inc_lock_ref(node)
        missing = len(tokens) - found
        if missing > self.slots.num_free:
            tree.evict(api.EvictParams(num_tokens=missing - self.slots.num_free))
        self.slots.num_free -= missing
        tree.insert(api.InsertParams(key=api.RadixKey(tokens), value=values))
        tree.dec_lock_ref(node)
        return found
