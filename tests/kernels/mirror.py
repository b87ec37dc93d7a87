"""CPU tensors on another device and back, with everything that makes them views.

It knows no kernel: storages are moved, tensors are rebuilt over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GUARD_BYTES: Final = 4096  # on both sides of a copy: as much as two rows of anything
GUARD: Final = 0xFF  # NaN as a float of any width, -1 as an integer


@dataclass(frozen=True)
class Copy:
    """A storage as bytes, and its copy between two guards."""

    here: Tensor
    there: Tensor

    @property
    def body(self) -> Tensor:
        """What `there` holds of `here`."""
        return self.there[GUARD_BYTES : GUARD_BYTES + self.here.numel()]

    def guards_are_intact(self) -> bool:
        """Whether nothing was written beside the body."""
        end = GUARD_BYTES + self.here.numel()
        return bool((self.there[:GUARD_BYTES] == GUARD).all() & (self.there[end:] == GUARD).all())


class Mirror:
    """Copies of storages, one of each: tensors that share memory share it there too."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies: dict[int, Copy] = {}  # by the storage's identity; a Copy keeps it alive

    def view(self, tensor: Tensor) -> Tensor:
        """The tensor over the copy of its storage: dtype, shape, strides and place are the same."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._copies:
            self._copies[key] = self._copied(storage)
        there = self._copies[key].there.untyped_storage()
        first = GUARD_BYTES // tensor.element_size() + tensor.storage_offset()
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return empty.set_(there, first, tensor.size(), tensor.stride())

    def _copied(self, storage: torch.UntypedStorage) -> Copy:
        here = torch.empty(0, dtype=torch.uint8).set_(storage)
        num_bytes = here.numel() + 2 * GUARD_BYTES
        copy = Copy(here, torch.full((num_bytes,), GUARD, dtype=torch.uint8, device=self.device))
        copy.body.copy_(here)
        return copy

    def bring_back(self) -> None:
        """Every storage as its copy is now. Fails if something was written beside one."""
        for copy in self._copies.values():
            assert copy.guards_are_intact(), "memory beside an argument was written"
            copy.here.copy_(copy.body)
