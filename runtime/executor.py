"""Does on the device what a scheduler's step says: moves of blocks, then the model.

It decides nothing, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from pagegen.errors import RequestError
from pagegen.runtime.attention import AttentionStep, PagedAttention
from pagegen.runtime.batch import Padding, SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.graphs import DecodeGraphs
from pagegen.runtime.kv_cache import KvCache
from pagegen.runtime.models.paged_model import PagedModel
from pagegen.runtime.step import Chunk, Step
from pagegen.runtime.transfer import to_device

Pair = tuple[int, int]


class Executor:
    """A model over one cache."""

    def __init__(
        self,
        model: PagedModel,
        cache: KvCache,
        attention: PagedAttention,
        builder: BatchBuilder,
        *,
        graphs: bool,
    ) -> None:
        """graphs: replay CUDA graphs where all sequences of a step decode."""
        self.model = model
        self.cache = cache
        self.attention = attention
        self.builder = builder
        self.graphs = (
            DecodeGraphs(self._empty, model.forward, builder.max_num_seqs, builder.max_model_len)
            if graphs
            else None
        )

    def _empty(self, padding: Padding) -> AttentionStep:
        return self.attention.begin(self.builder.build([], padding=padding))

    def move(self, step: Step) -> None:
        """Swap and copy the blocks that a step names, in its order."""
        if len(step.swapped_out):
            for turn in in_turns(map(tuple, step.swapped_out.tolist()), one_pool=False):
                self.cache.swap_out(turn).join()
        if len(step.swapped_in):
            pairs = step.swapped_in[:, ::-1].tolist()  # the cache counts from the device's side
            for turn in in_turns(map(tuple, pairs), one_pool=False):
                self.cache.swap_in(turn).join()
        for turn in in_turns(step.copies, one_pool=True):
            self.cache.copy_blocks(turn)

    def run(self, step: Step) -> torch.Tensor:
        """Logits [num_rows, vocab_size], a row for each chunk that samples, in their order.

        They hold until the next run.
        """
        chunks = step.chunks
        if self.graphs is not None and all(chunk.num_tokens == 1 for chunk in chunks):
            return self._replay(self.graphs, chunks)
        batch = self.builder.build(records(chunks))
        return self.model.forward(self.attention.begin(batch))

    def _replay(self, graphs: DecodeGraphs, chunks: tuple[Chunk, ...]) -> torch.Tensor:
        longest = max(chunk.position for chunk in chunks) + 1
        padding = graphs.padding(len(chunks), longest)
        graphs.capture(padding)
        self.builder.build(records(chunks), padding=padding)
        logits = graphs.replay(padding, len(chunks))
        rows = [i for i, chunk in enumerate(chunks) if chunk.samples]
        if len(rows) == len(chunks):
            return logits
        return logits.index_select(0, to_device(np.array(rows, np.int64), logits.device))


def records(chunks: Iterable[Chunk]) -> list[SequenceInput]:
    """A step's chunks for the batch builder, with the block ids that changed."""
    found = []
    for job, position, num_tokens, samples in chunks:
        sequence = job.sequence
        first, block_ids = sequence.take_changes()
        tokens = sequence.tokens_from(position, position + num_tokens)
        found.append(SequenceInput(job.row, tokens, position, block_ids, first, int(samples)))
    return found


def in_turns(pairs: Iterable[tuple[int, ...]], *, one_pool: bool) -> list[list[Pair]]:
    """Pairs (source, target) in as few turns as do at once what they do one after the other.

    one_pool: both are ids of the same blocks; a block of which two sequences get copies may be
    written anew by a third. Otherwise each id comes once a turn.
    """
    turns: list[list[Pair]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for source, target in pairs:
        if one_pool:
            clash = source in targets or target in targets or target in sources
        else:
            clash = source in sources or target in targets
        if clash or not turns:
            turns.append([])
            sources, targets = set(), set()
        turns[-1].append((source, target))
        sources.add(source)
        targets.add(target)
    return turns


def check_prompt(prompt: Iterable[int], vocab_size: int, name: str) -> None:
    """Raises RequestError for ids that the model does not have."""
    ids = np.asarray(prompt)
    if ids.size and np.issubdtype(ids.dtype, np.integer):
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= vocab_size:
            raise RequestError(
                f"{name}: token ids {least} to {most}", allowed=f"0 to {vocab_size - 1}"
            )
