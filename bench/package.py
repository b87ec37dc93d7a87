"""The thing under test: a generated package, loaded from its folder like any vendored copy.

It knows no timing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench.cases import Case
from bench.errors import UsageError
from bench.peers import Run, Setup
from bench.tensors import CaseTensors
from pagegen.verify import runnable

TIMED_BACKENDS = ("cuda", "triton")


@dataclass(frozen=True)
class Package:
    """A loaded package and the spec it was built from."""

    folder: Path
    ops: ModuleType
    spec: Mapping[str, Any]

    def misfit(self, case: Case) -> str:
        """Why the package cannot run a case; empty if it can."""
        wanted = {
            "num_q_heads": case.num_q_heads,
            "num_kv_heads": case.num_kv_heads,
            "head_dim": case.head_dim,
            "block_size": case.block_size,
            "dtype_query": case.dtype,
            "dtype_kv": case.dtype,
            "lookup": "table",
            "window": 0,
            "soft_cap": 0,
            "causal": True,
        }
        differing = [
            f"{name} is {self.spec[name]}, not {value}"
            for name, value in wanted.items()
            if self.spec[name] != value
        ]
        if case.op not in self.spec["kernels"]:
            differing.append(f"no {case.op}")
        return "; ".join(differing)

    def cache(self, nhd: Tensor) -> Tensor:
        """An NHD cache as the package's layout sees the same memory."""
        return nhd.transpose(1, 2) if self.spec["layout"] == "HND" else nhd

    def variants(
        self, op: str, backends: Sequence[str], patterns: Sequence[str]
    ) -> tuple[tuple[str, str], ...]:
        """(backend, variant) pairs that run here and match a pattern; all without patterns.

        Checked variants report faults to the host, so they cannot be captured.
        """
        return tuple(
            (backend, row["variant"])
            for backend in backends or TIMED_BACKENDS
            for row in runnable(self.ops, "cuda")
            if (row["kernel"], row["backend"]) == (op, backend) and not row["checked"]
            if not patterns or any(fnmatchcase(row["variant"], pattern) for pattern in patterns)
        )


def load_package(folder: Path) -> Package:
    """Import a generated package by path. Raises UsageError when the folder holds none."""
    entry = folder / "__init__.py"
    if not (folder / "manifest.json").is_file() or not entry.is_file():
        raise UsageError(
            f"{folder} is no generated package\n"
            f"  to fix: pagegen build specs/{folder.name}.yaml --out {folder.parent}"
        )
    name = f"measured_{folder.resolve().name}"
    location = importlib.util.spec_from_file_location(
        name, entry, submodule_search_locations=[str(folder)]
    )
    if location is None or location.loader is None:
        raise UsageError(f"{entry} cannot be imported")
    ops = importlib.util.module_from_spec(location)
    sys.modules[name] = ops  # its relative imports look here
    location.loader.exec_module(ops)
    return Package(folder, ops, ops.manifest()["spec"])


def find_package(packages: Sequence[Package], case: Case) -> tuple[Package | None, str]:
    """The first package that can run a case, or None and why each cannot."""
    reasons = []
    for package in packages:
        reason = package.misfit(case)
        if not reason:
            return package, ""
        reasons.append(f"{package.folder.name}: {reason}")
    return None, " | ".join(reasons) or "no --package given"


def attention_setups(
    package: Package,
    tensors: CaseTensors,
    backends: Sequence[str],
    patterns: Sequence[str],
) -> tuple[Setup, ...]:
    """Ways to run a decode or prefill case: one a backend and variant."""
    return tuple(
        Setup(f"{backend}/{variant}", partial(_attention, package, tensors, backend, variant))
        for backend, variant in package.variants(tensors.case.op, backends, patterns)
    )


def _attention(package: Package, tensors: CaseTensors, backend: str, variant: str) -> Run:
    case = tensors.case
    out = tensors.new_out()
    inputs = (
        tensors.q,
        package.cache(tensors.k_cache),
        package.cache(tensors.v_cache),
        tensors.block_table,
        tensors.seq_lens,
    )
    chosen = {"backend": backend, "variant": variant}
    if case.op == "decode":
        workspace = new_workspace(package, tensors, backend, variant)
        return partial(package.ops.decode, *inputs, out=out, workspace=workspace, **chosen)
    lengths = {"cu_seqlens_q": tensors.cu_seqlens_q, "max_seqlen_q": case.q_len}
    return partial(package.ops.prefill, *inputs, out=out, **lengths, **chosen)


def new_workspace(
    package: Package, tensors: CaseTensors, backend: str, variant: str
) -> Tensor | None:
    """Scratch for split decode. A call captured without one would clear a new one every time."""
    case, device = tensors.case, tensors.q.device
    max_seq_len = case.blocks_per_seq * case.block_size
    num_splits = package.ops.num_splits(
        case.num_seqs, max_seq_len, device=device, backend=backend, variant=variant
    )
    num_bytes = package.ops.workspace_bytes(case.num_seqs, num_splits)
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device) if num_bytes else None
