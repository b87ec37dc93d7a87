"""Copies between host and device that nobody waits for, and how to tell that one has ended.

It knows no cache: arrays, runs of consecutive ids, and events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Transfer:
    """A copy that was started. event: recorded behind it; None: it has ended already."""

    event: Any

    def done(self) -> bool:
        """Whether it has ended; does not wait."""
        return self.event is None or bool(self.event.query())

    def join(self) -> None:
        """Make what the current stream is given from now on run after it, without waiting."""
        if self.event is not None:
            self.event.wait()


def to_device(array: Any, device: torch.device) -> torch.Tensor:
    """A numpy array as a tensor on `device`, without waiting for the copy.

    On a GPU it goes through fresh pinned memory, which torch keeps until the copy has ended.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def runs_of(pairs: Any) -> list[tuple[int, int, int]]:
    """Pairs of ids [num_pairs, 2] as runs (first, first, count), both sides counting up by one."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    begins = np.flatnonzero((np.diff(pairs, axis=0, prepend=pairs[:1] - 2) != 1).any(1))
    counts = np.diff(begins, append=len(pairs))
    return [(*pairs[begin].tolist(), int(n)) for begin, n in zip(begins, counts, strict=True)]
