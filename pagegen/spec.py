"""From YAML text to a Spec: all a user may say, checked; errors carry file, line and column.

It knows nothing of kernels, tiles or targets' limits: that is lower's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from msgspec import UNSET

from pagegen.errors import Position, SpecError
from pagegen.plan import BACKENDS, KERNELS, Backend, Kernel
from pagegen.schema import ARCH_NAMES, Document
from pagegen.schema_check import dotted, read_document
from pagegen.spec_rules import arch_list, complaints, safe_file_name
from pagegen.yaml_tree import Node, read_tree

Layout = Literal["NHD", "HND"]
Lookup = Literal["table", "csr"]
MAX_FILE_BYTES: Final = 65536


@dataclass(frozen=True)
class Spec:
    """A validated spec. Sizes in tokens or elements; 0 means off.

    archs, kernels and backends are sets in the order of pagegen's own tables, so that two files
    that mean the same give the same bytes.
    """

    name: str
    archs: tuple[str, ...]
    num_q_heads: int
    num_kv_heads: int
    head_dim: int  # of q and k, elements
    head_dim_v: int
    dtype_query: str
    dtype_kv: str
    dtype_out: str
    block_size: int  # tokens
    layout: Layout
    lookup: Lookup
    causal: bool
    window: int  # visible keys including the query's own; 0 = off
    soft_cap: float  # 0.0 = off
    kernels: tuple[Kernel, ...]
    backends: tuple[Backend, ...]
    file_name: str  # base name of the YAML file
    digest: str  # sha256 of the meaning, hexadecimal

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads


def load(path: str | Path) -> Spec:
    """The spec in the file at `path`.

    Raises SpecError or TargetError; a file that cannot be read is a SpecError too.
    """
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(
            f"cannot read the spec: {reason}", remedy="give the path of a YAML file", where=where
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace").split("\n")
        raise SpecError(
            f"not UTF-8: the byte 0x{data[error.start]:02x}",
            remedy="save the file as UTF-8",
            position=Position(where, len(before), len(before[-1]) + 1, before[-1]),
        ) from error
    return parse(text, where)


def parse(text: str, path: str) -> Spec:
    """The spec in `text`; `path` names it in errors, and its last part in emitted files.

    Raises SpecError or TargetError for the first mistake in the order of the text.
    """
    if len(text.encode(errors="replace")) > MAX_FILE_BYTES:
        raise SpecError("too long for a spec", allowed=f"{MAX_FILE_BYTES} bytes", where=path)
    file_name = Path(path).name
    if not safe_file_name(file_name):
        raise SpecError(
            f"the file name {file_name!r} cannot be printed in emitted code",
            allowed="up to 64 of A-Z a-z 0-9 _ . + -",
            remedy="rename the file",
            where=repr(path),
        )
    root = read_tree(text, path)
    document = read_document(root)
    _check_rules(root, document)
    return _resolve(document, file_name)


def _check_rules(root: Node, document: Document) -> None:
    """Raise the broken rule that stands first in the text."""
    broken = [(root.find(row.path).position, row) for row in complaints(document)]
    if broken:
        place, first = min(broken, key=lambda pair: (pair[0].line, pair[0].column))
        raise first.error(
            f"{dotted(first.path)}: {first.asked}",
            allowed=first.allowed,
            remedy=first.remedy,
            position=place,
        )


def _resolve(document: Document, file_name: str) -> Spec:
    """Every default filled in and every list in table order."""
    heads, types, attention = document.heads, document.dtype, document.attention
    archs = arch_list(document)
    dim_qk = heads.dim_qk if heads.dim is UNSET else heads.dim
    dim_v = heads.dim_v if heads.dim is UNSET else heads.dim
    assert dim_qk is not UNSET and dim_v is not UNSET  # a rule of spec_rules
    spec = Spec(
        name=document.name,
        archs=tuple(name for name in ARCH_NAMES if name in archs),
        num_q_heads=heads.query,
        num_kv_heads=heads.kv,
        head_dim=dim_qk,
        head_dim_v=dim_v,
        dtype_query=types.query,
        dtype_kv=types.query if types.kv is UNSET else types.kv,
        dtype_out=types.query if types.out is UNSET else types.out,
        block_size=document.cache.block_size,
        layout=document.cache.layout,
        lookup=document.cache.lookup,
        causal=attention.mask == "causal",
        window=attention.window or 0,
        soft_cap=float(attention.soft_cap or 0.0),
        kernels=tuple(name for name in KERNELS if name in document.kernels),
        backends=tuple(name for name in BACKENDS if name in document.backends),
        file_name=file_name,
        digest="",
    )
    return replace(spec, digest=meaning_digest(spec))


def meaning_digest(spec: Spec) -> str:
    """sha256 over every field but the file's name: comments and spelling do not count."""
    meaning = asdict(spec)
    del meaning["file_name"], meaning["digest"]
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
