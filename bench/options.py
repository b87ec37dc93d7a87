"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PACKAGE = Path("generated/llama3_8b")
NO_PEER = "none"


@dataclass(frozen=True)
class Options:
    """What a run measures, and where its report goes."""

    packages: tuple[Path, ...]
    rows: tuple[str, ...]
    variants: tuple[str, ...]
    backends: tuple[str, ...]
    peers_folder: Path | None
    peer_names: tuple[str, ...] | None  # None: no peer at all; empty: all
    json_path: Path | None
    repeats: int
    seed: int
    commit: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def parse_options(question: str, arguments: list[str] | None = None) -> Options:
    """Read the command line; `question` is what the benchmark answers."""
    parser = argparse.ArgumentParser(description=question)
    add = parser.add_argument
    add("--package", type=Path, action="append", help="generated package; may be repeated")
    add("--rows", type=_words, default=(), help="row names or shell patterns, with commas")
    add("--variants", type=_words, default=(), help="variant names or patterns, with commas")
    add("--backends", type=_words, default=(), help="cuda,triton")
    add("--peers", type=Path, metavar="DIR", help="folder that peers are imported from")
    add("--only-peers", type=_words, default=(), metavar="NAMES", help="these alone, or none")
    add("--json", type=Path, metavar="PATH", help="report; bench/results/ if left out")
    add("--repeats", type=int, default=25)
    add("--seed", type=int, default=0)
    add("--commit", default="", help="of the tree, where git cannot tell")
    given = parser.parse_args(arguments)
    return Options(
        packages=tuple(given.package or (DEFAULT_PACKAGE,)),
        rows=given.rows,
        variants=given.variants,
        backends=given.backends,
        peers_folder=given.peers,
        peer_names=None if NO_PEER in given.only_peers else given.only_peers,
        json_path=given.json,
        repeats=given.repeats,
        seed=given.seed,
        commit=given.commit,
    )
