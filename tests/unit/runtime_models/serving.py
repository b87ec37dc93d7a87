"""The least engine there is: steps over a few sequences with blocks handed out in a shuffled order.

It has no scheduler: a test says which sequences run how many tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from pagegen.runtime.attention import PagedAttention
from pagegen.runtime.batch import Batch, Padding, SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.dispatcher import Dispatcher
from pagegen.runtime.kv_cache import KvCache
from pagegen.runtime.models.paged_model import PagedModel


@dataclass
class Running:
    """A sequence: its tokens, how many of them are in the cache, and its blocks."""

    row: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    sent: int = 0  # blocks the builder knows


class Server:
    """A model, its cache, and rows of running sequences."""

    def __init__(
        self,
        model: Any,
        ops: Any,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
    ) -> None:
        self.model = PagedModel(model, ops, max_model_len=max_model_len)
        self.cache = KvCache(ops, self.model.num_layers, num_blocks)
        self.cache.pool.fill_(float("nan"))  # what was not written must not be read
        self.attention = PagedAttention(ops, self.cache, Dispatcher.for_package(ops))
        self.builder = BatchBuilder(
            block_size=self.cache.facts.block_size,
            max_num_seqs=max_num_seqs,
            max_num_tokens=512,
            max_model_len=self.model.max_model_len,
        )
        self.free = list(range(num_blocks))
        random.Random(0).shuffle(self.free)
        self.batches: list[Batch] = []

    def add(self, row: int, prompt: list[int]) -> Running:
        """A sequence that has computed nothing."""
        return Running(row, list(prompt))

    def step(self, work: list[tuple[Running, int]], padding: Padding | None = None) -> torch.Tensor:
        """Run `count` tokens of each sequence; returns logits of those whose last token ran."""
        size = self.cache.facts.block_size
        inputs = []
        for one, count in work:
            end = one.computed + count
            while len(one.blocks) * size < end:
                one.blocks.append(self.free.pop())
            inputs.append(
                SequenceInput(
                    row=one.row,
                    token_ids=one.tokens[one.computed : end],
                    position=one.computed,
                    block_ids=one.blocks[one.sent :],
                    first_block=one.sent,
                    num_logits=int(end == len(one.tokens)),
                )
            )
            one.computed, one.sent = end, len(one.blocks)
        batch = self.builder.build(inputs, padding=padding)
        self.batches.append(batch)
        return self.model.forward(self.attention.begin(batch)).clone()

    def append_greedy(
        self, work: list[tuple[Running, int]], padding: Padding | None = None
    ) -> None:
        """A step, then the likeliest token to each sequence that got logits."""
        logits = self.step(work, padding)
        ready = [one for one, _ in work if one.computed == len(one.tokens)]
        for one, token in zip(ready, logits.argmax(-1).tolist(), strict=False):
            one.tokens.append(token)
