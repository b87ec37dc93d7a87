"""Whole numbers on their way to the device: arrays laid side by side, sent in one copy.

It knows nothing of what they mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

PINNED_BUFFERS = 2  # filled in turn: one is filled while the other's copy may be under way


class Staging:
    """A device buffer and pinned host buffers of the same size; on a CPU one buffer is both.

    begin(), then words() and halves() in turn, then send(). Equal calls give equal addresses.
    """

    def __init__(self, num_words: int, device: torch.device) -> None:
        """num_words: of 8 bytes."""
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._reserve(num_words)

    def _reserve(self, num_words: int) -> None:
        count = PINNED_BUFFERS if self._on_gpu else 1
        self._hosts: list[torch.Tensor] = [
            torch.zeros(num_words, dtype=torch.int64, pin_memory=self._on_gpu) for _ in range(count)
        ]
        self._sent: list[Any] = [None] * count  # events
        self._arrays: list[Any] = [host.numpy() for host in self._hosts]
        self._tensor = (
            torch.zeros(num_words, dtype=torch.int64, device=self.device)
            if self._on_gpu
            else self._hosts[0]
        )
        self._half_tensor = self._tensor.view(torch.int32)
        self._turn = 0
        self._used = 0

    def begin(self, num_words: int = 0) -> None:
        """Start anew, with room for num_words: growing changes the addresses.

        Waits for the device only if it has not yet fetched what was sent PINNED_BUFFERS sends ago:
        filling that buffer now would change a step that is still to run.
        """
        if num_words > self._tensor.shape[0]:
            self._reserve(2 * num_words)
        self._turn = (self._turn + 1) % len(self._hosts)
        self._used = 0
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()

    def words(self, count: int) -> tuple[Any, torch.Tensor]:
        """The next `count` int64: an array to fill, and the tensor that will hold it."""
        begin, end = self._used, self._used + count
        self._used = end
        return self._arrays[self._turn][begin:end], self._tensor[begin:end]

    def halves(self, count: int) -> tuple[Any, torch.Tensor]:
        """The next `count` int32, likewise."""
        begin = self._used
        self._used += (count + 1) // 2
        array = self._arrays[self._turn][begin : self._used].view(np.int32)[:count]
        return array, self._half_tensor[2 * begin : 2 * begin + count]

    def send(self) -> None:
        """Copy to the device what was filled, on the current stream."""
        if self._on_gpu and self._used:
            host = self._hosts[self._turn][: self._used]
            self._tensor[: self._used].copy_(host, non_blocking=True)
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._sent[self._turn] = event
