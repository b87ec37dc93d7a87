"""The rules between the fields of a spec, each with its text.

It knows no position: a complaint names the field, and spec finds the place.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from pagegen.archs import ARCHS
from pagegen.errors import PagegenError, SpecError, TargetError
from pagegen.schema import ARCH_NAMES, NAME_RULE, Attention, Document, DTypes, Heads
from pagegen.schema_check import KeyPath, nearest_arch

MAX_GROUP: Final = 128  # query heads per KV head
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_LIBRARIES: Final = ("cuda", "cupy", "generated", "numpy", "pagegen", "torch", "triton")
# A package of one of these names would hide what its own code or its user imports or calls.
_TAKEN: Final = frozenset((*sys.stdlib_module_names, *dir(builtins), *_LIBRARIES))


@dataclass(frozen=True)
class Complaint:
    """A rule that a spec breaks, and the field to look at."""

    path: KeyPath
    asked: str
    allowed: str = ""
    remedy: str = ""
    error: type[PagegenError] = SpecError


def complaints(document: Document) -> Iterator[Complaint]:
    """Every broken rule, in no particular order."""
    yield from _name(document.name)
    yield from _archs(document)
    yield from _heads(document.heads)
    yield from _dtypes(document.dtype)
    yield from _attention(document.attention)
    yield from _repeats(("kernels",), document.kernels)
    yield from _repeats(("backends",), document.backends)
    yield from _backends(document)


def arch_list(document: Document) -> tuple[str, ...]:
    """The targets, also when the file gives one without brackets."""
    return (document.arch,) if isinstance(document.arch, str) else document.arch


def safe_file_name(name: str) -> bool:
    """Whether a spec file's name may be printed in the header of emitted code."""
    return bool(_FILE_NAME.fullmatch(name))


def _name(name: str) -> Iterator[Complaint]:
    """It becomes a folder, a Python package and part of every symbol."""
    if not _NAME.fullmatch(name):
        yield Complaint(("name",), f"{name[:60]!r} is not a name", allowed=NAME_RULE)
    elif keyword.iskeyword(name):
        yield Complaint(("name",), f"{name} is a Python keyword", remedy=f"{name}_kernels")
    elif name in _TAKEN:
        yield Complaint(
            ("name",), f"{name} would hide Python's or a library's own", remedy=f"{name}_kernels"
        )


def _archs(document: Document) -> Iterator[Complaint]:
    """One spelling per target, each once."""
    names = arch_list(document)
    known = ", ".join(ARCH_NAMES)
    if not names:
        yield Complaint(("arch",), "an empty list", allowed=known)
    for index, name in enumerate(names):
        if name not in ARCH_NAMES:
            yield Complaint(
                ("arch",) if isinstance(document.arch, str) else ("arch", index),
                f"{name[:60]!r} is not a known target",
                allowed=known,
                remedy=nearest_arch(name),
                error=TargetError,
            )
    yield from _repeats(("arch",), names)


def _heads(heads: Heads) -> Iterator[Complaint]:
    """Equal groups of query heads, and one way to say the head size."""
    if heads.query % heads.kv:
        yield Complaint(
            ("heads", "query"),
            f"{heads.query} query heads cannot share {heads.kv} KV heads equally",
            allowed="a multiple of heads.kv",
        )
    elif heads.query // heads.kv > MAX_GROUP:
        yield Complaint(
            ("heads", "query"),
            f"{heads.query // heads.kv} query heads per KV head",
            allowed=f"at most {MAX_GROUP}",
        )
    pair = (heads.dim_qk is not UNSET, heads.dim_v is not UNSET)
    if (heads.dim is UNSET) != all(pair) or any(pair) != all(pair):
        yield Complaint(
            ("heads",),
            "the head size must be said once",
            allowed="either dim, or both dim_qk and dim_v",
        )


def _dtypes(types: DTypes) -> Iterator[Complaint]:
    """One element type for now: what differs from the query's is not built."""
    for key, name in (("kv", types.kv), ("out", types.out)):
        if name is not UNSET and name != types.query:
            yield Complaint(
                ("dtype", key),
                f"{name} beside {types.query} queries is not built yet",
                allowed=f"{types.query}, the type of dtype.query",
            )


def _attention(attention: Attention) -> Iterator[Complaint]:
    """A window looks back from a query's own place; score terms beyond the cap come later."""
    if attention.window is not None and attention.mask != "causal":
        yield Complaint(
            ("attention", "window"),
            f"a window of {attention.window} keys with mask {attention.mask}",
            allowed="a window with mask causal only",
            remedy="set window: null, or mask: causal",
        )
    for key, on in (("sinks", attention.sinks), ("alibi", attention.alibi)):
        if on:
            yield Complaint(("attention", key), "not built yet", allowed="false")


def _backends(document: Document) -> Iterator[Complaint]:
    """What the CUDA templates cannot serve is said, never dropped in silence."""
    if "cuda" not in document.backends:
        return
    others = [name for name in document.backends if name != "cuda"] or ["triton", "torch"]
    remedy = f"add backends: [{', '.join(others)}]"
    vendors = {row.name: row.vendor for row in ARCHS}
    names = arch_list(document)
    if names and all(vendors.get(name) == "hip" for name in names):
        yield Complaint(
            ("arch",),
            f"the backend cuda cannot run on {', '.join(names)}",
            allowed="gfx targets with the backends triton, torch",
            remedy=remedy,
            error=TargetError,
        )
    if document.dtype.query == "fp32":
        yield Complaint(
            ("dtype", "query"),
            "the backend cuda has no fp32 kernels",
            allowed="bf16, fp16; or fp32 with the backends triton, torch",
            remedy=remedy,
        )


def _repeats(path: KeyPath, names: Sequence[str]) -> Iterator[Complaint]:
    """A list is a set: an entry that stands twice is a mistake."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Complaint((*path, index), f"{name[:60]!r} stands here again", remedy="delete it")
