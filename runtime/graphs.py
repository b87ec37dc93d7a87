"""CUDA graphs of decode steps, by padded shape: the host launches one graph, not every kernel.

It knows no sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pagegen.runtime.attention import AttentionStep
from pagegen.runtime.batch import Padding

SHORTEST = 1024  # tokens; longer graphs each hold four times as many
STEP = 16  # sequences; below, sizes are powers of two


def padded_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then multiples of 16, and max_num_seqs itself."""
    sizes = {1, 2, 4, 8, *range(STEP, max_num_seqs, STEP), max_num_seqs}
    return tuple(sorted(size for size in sizes if size <= max_num_seqs))


def padded_lengths(max_model_len: int) -> tuple[int, ...]:
    """Bounds of the longest sequence in tokens: 1k, 4k, 16k and so on, up to max_model_len."""
    lengths = []
    length = SHORTEST
    while length < max_model_len:
        lengths.append(length)
        length *= 4
    return (*lengths, max_model_len)


class DecodeGraphs:
    """Graphs of one model, captured when first asked for. All of them share their memory."""

    def __init__(
        self,
        prepare: Callable[[Padding], AttentionStep],
        forward: Callable[[AttentionStep], torch.Tensor],
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        """prepare: the step of an empty batch of a padding; forward: its logits, a row each."""
        self._prepare = prepare
        self._forward = forward
        self._sizes = padded_sizes(max_num_seqs)
        self._lengths = padded_lengths(max_model_len)
        self._graphs: dict[Padding, Any] = {}
        self._pool: Any = None
        self._logits: torch.Tensor | None = None  # [max_num_seqs, vocab_size], of all graphs

    def padding(self, num_seqs: int, max_seq_len: int) -> Padding:
        """The smallest shape that holds a step."""
        return Padding(
            next(size for size in self._sizes if size >= num_seqs),
            next(length for length in self._lengths if length >= max_seq_len),
        )

    def capture_all(self) -> None:
        """Capture every shape now, the largest first, so that no step has to."""
        for length in reversed(self._lengths):
            for size in reversed(self._sizes):
                self.capture(Padding(size, length))

    def capture(self, padding: Padding) -> None:
        """Capture a shape unless it is there. Waits for the GPU, and builds an empty batch: call
        it before the step's own batch is built."""
        if padding in self._graphs:
            return
        cuda: Any = torch.cuda
        step = self._prepare(padding)
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # what is loaded or built by a first call is not captured
            for _ in range(2):
                logits = self._forward(step)
        cuda.current_stream().wait_stream(side)
        if self._logits is None:
            shape = self._sizes[-1], logits.shape[-1]
            self._logits = torch.empty(shape, dtype=logits.dtype, device=logits.device)
        del logits
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self._pool), torch.inference_mode():
            # Copied out, so that the next graph may use the memory in which they were computed.
            self._logits[: padding.num_seqs].copy_(self._forward(step))
        self._pool = graph.pool()
        self._graphs[padding] = graph

    def replay(self, padding: Padding, num_seqs: int) -> torch.Tensor:
        """Logits [num_seqs, vocab_size] of the batch that was just built with this padding. They
        hold until the next replay."""
        self._graphs[padding].replay()
        assert self._logits is not None
        return self._logits[:num_seqs]
