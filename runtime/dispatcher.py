"""Which kernel variant runs a shape: measured choices where there are any, else a static rule.

It knows a package's manifest and the device, no tensor; it launches and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pagegen.errors import PackageError
from pagegen.manifest import Manifest
from pagegen.runtime.buckets import bucket, largest
from pagegen.runtime.loader import manifest_of

CONTEXT_BITS = 10  # of a bucket number; a bucket of 2**31 tokens is below 300
LONE_SEQUENCES = 4  # at most so many are cut into many parts each
BIG_TILE_CAPABILITIES = (9, 10)  # majors whose fastest matrix unit Triton uses and mma.sync is not


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs a shape. num_splits: parts of a sequence, 1 in prefill. reason: one line."""

    backend: str
    variant: str
    num_splits: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """A bucket of shapes of one op: whoever measures a shape files its winner under its key."""

    op: str
    num_seqs: int
    max_seq_len: int
    max_seqlen_q: int

    @staticmethod
    def of(op: str, num_seqs: int, max_seq_len: int, max_seqlen_q: int = 1) -> ShapeKey:
        """The key of a shape; max_seq_len and max_seqlen_q in tokens."""
        return ShapeKey(op, bucket(num_seqs), bucket(max_seq_len), bucket(max_seqlen_q))

    def shape(self) -> tuple[int, int, int]:
        """The largest shape with this key: (num_seqs, max_seq_len, max_seqlen_q)."""
        return largest(self.num_seqs), largest(self.max_seq_len), largest(self.max_seqlen_q)


Table = Mapping[ShapeKey, Choice]


class Dispatcher:
    """Choices for one package on one device. A shape seen before costs one look-up."""

    def __init__(
        self, ops: Any, facts: Manifest, device: torch.device, backend: str | None, table: Table
    ) -> None:
        self._ops = ops
        self._facts = facts
        self._device = device
        self._table = table
        self._decode: dict[int, Choice] = {}
        self._prefill: dict[int, Choice] = {}
        self._backends = (backend,) if backend else self._usable()

    @staticmethod
    def for_package(
        ops: Any,
        *,
        device: torch.device | str = "cpu",
        backend: str | None = None,
        table: Table | None = None,
    ) -> Dispatcher:
        """A dispatcher for a loaded package.

        backend: the only one to use; default: the one `ops` was loaded for, else all that run on
        the device. table: measured choices, which go before the static rule. Raises PackageError
        for a backend or a measured variant that the package lacks.
        """
        facts = manifest_of(ops)
        only = backend or getattr(ops, "backend", None)
        if only is not None and only not in facts.spec.backends:
            raise PackageError(f"no backend {only!r}", allowed=", ".join(facts.spec.backends))
        measured = dict(table or {})
        for key, choice in measured.items():
            if facts.find(key.op, choice.backend, choice.variant) is None:
                raise PackageError(
                    f"a measured choice names {choice.backend} {choice.variant}",
                    allowed=", ".join(facts.variants(key.op, choice.backend)),
                    remedy=f"measure {facts.name} again: it was built anew since",
                    where=key.op,
                )
        return Dispatcher(ops, facts, torch.device(device), only, measured)

    def choose_decode(self, num_seqs: int, max_seq_len: int) -> Choice:
        """For num_seqs sequences of at most max_seq_len tokens, one query token each."""
        place = bucket(num_seqs) << CONTEXT_BITS | bucket(max_seq_len)
        choice = self._decode.get(place)
        if choice is None:
            key = ShapeKey.of("decode", num_seqs, max_seq_len)
            choice = self._decode[place] = self._table.get(key) or self._static_decode(key)
        return choice

    def choose_prefill(self, num_seqs: int, max_seq_len: int, max_seqlen_q: int) -> Choice:
        """For num_seqs sequences of at most max_seq_len tokens, max_seqlen_q of them queries."""
        queries = bucket(num_seqs) << CONTEXT_BITS | bucket(max_seqlen_q)
        place = queries << CONTEXT_BITS | bucket(max_seq_len)
        choice = self._prefill.get(place)
        if choice is None:
            key = ShapeKey.of("prefill", num_seqs, max_seq_len, max_seqlen_q)
            choice = self._prefill[place] = self._table.get(key) or self._static_prefill()
        return choice

    def _usable(self) -> tuple[str, ...]:
        """The package's backends that run on the device, in its order."""
        backends = self._facts.spec.backends
        if self._device.type == "cpu":
            return ("torch",) if "torch" in backends else backends
        usable = tuple(name for name in backends if name != "torch" and self._runs(name))
        return usable or backends

    def _runs(self, backend: str) -> bool:
        """Whether the package finds a kernel of `backend` for the device."""
        try:
            self._ops.num_splits(1, 1, device=self._device, backend=backend)
        except RuntimeError:  # the package's DeviceError, whose class is its own
            return False
        return True

    def _static_decode(self, key: ShapeKey) -> Choice:
        """Decode reads each key once and computes little, so all backends are near the memory's
        speed, and what differs is how soon the first bytes arrive."""
        num_seqs, max_seq_len, _ = key.shape()
        backend = self._backends[0]
        variant = "default"
        if backend == "cuda":
            reason = "memory-bound: starts soonest, measured on H200 1 to 20 % ahead of triton"
        elif backend == "triton":
            reason = "the GPU backend there is"
            variants = self._facts.variants("decode", "triton")
            long = next((name for name in variants if name[0] == "n" and name[1:].isdigit()), None)
            if long and num_seqs <= LONE_SEQUENCES:
                variant = long
                reason = "few sequences in many parts: longer steps, measured on H200 3 to 13 %"
        else:
            reason = "plain PyTorch, which is not cut"
        num_splits = self._ops.num_splits(
            num_seqs, max_seq_len, device=self._device, backend=backend, variant=variant
        )
        return Choice(backend, variant, num_splits, reason)

    def _static_prefill(self) -> Choice:
        """Prefill is bound by the matrix unit. The CUDA kernels use mma.sync, which reaches 600 of
        an H200's 790 TFLOP/s; Triton's use wgmma and its successors where there are any."""
        if "triton" in self._backends and self._has_big_tiles():
            reason = "compute-bound: wgmma, measured on H200 463 against 426 TFLOP/s at 1 x 16k"
            return Choice("triton", "default", 1, reason)
        if self._backends[0] == "cuda":
            return Choice("cuda", "default", 1, "compute-bound: mma.sync is the matrix unit here")
        return Choice(self._backends[0], "default", 1, "the backend there is")

    def _has_big_tiles(self) -> bool:
        if self._device.type != "cuda":
            return False
        major, _ = torch.cuda.get_device_capability(self._device)
        return torch.version.hip is None and major in BIG_TILE_CAPABILITIES
