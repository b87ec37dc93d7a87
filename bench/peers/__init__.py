"""The kernels we are measured against, one module a project; they are imported, never copied.

A peer that is missing or fails is reported with its reason, not left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from torch import Tensor

from bench.errors import UsageError
from bench.tensors import CaseTensors

PEERS = ("flashinfer", "fa3", "vllm_triton", "sglang_triton", "lmdeploy_triton")

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Setup:
    """One way to call a peer. `prepare` plans, and returns what is timed: a call giving out."""

    config: str
    prepare: Callable[[], Run]


@dataclass(frozen=True)
class Availability:
    """Whether a peer can be imported: its version, or the reason why not."""

    ok: bool
    text: str


class Peer(Protocol):
    """What each module here offers."""

    NAME: str

    def available(self) -> Availability:
        """Import the peer and say how that went."""

    def decode(self, tensors: CaseTensors) -> tuple[Setup, ...]:
        """Ways to run a decode case."""

    def prefill(self, tensors: CaseTensors) -> tuple[Setup, ...]:
        """Ways to run a prefill case."""


def add_folder(folder: Path) -> None:
    """Let peers be imported from a folder of packages. Raises UsageError if there is none."""
    if not folder.is_dir():
        raise UsageError(f"--peers {folder}: there is no such folder")
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)


def find_peers(names: Sequence[str]) -> Iterator[Peer]:
    """The named peers; all without names. Raises UsageError for an unknown one."""
    for name in names:
        if name not in PEERS:
            raise UsageError(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    for name in names or PEERS:
        # A module is its own instance of the protocol.
        peer: Peer = import_module(f"bench.peers.{name}")
        yield peer


def import_peer(*modules: str) -> Availability:
    """Availability of a peer that needs these modules; the first one's version is its own."""
    try:
        found = [import_module(name) for name in modules]
    except Exception as error:  # a broken peer must not end the run: any error is its reason
        return Availability(False, f"{type(error).__name__}: {error}")
    root = sys.modules[modules[0].partition(".")[0]]
    return Availability(True, str(getattr(root, "__version__", found[0].__name__)))
