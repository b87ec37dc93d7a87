"""Calls the torch backend's emitted attention functions, each rendered once for the folder.

It knows their arguments, and nothing of what they do inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagegen.cases import Case
from pagegen.spec import Spec
from tests.kernels.calls import Result
from tests.rendering import load_kernel

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Calls an emitted function on results full of NaN."""
    folder = tmp_path_factory.mktemp("torch")
    loaded: dict[tuple[Spec, str, str], Callable[..., tuple[int, ...] | None]] = {}

    def call(
        spec: Spec,
        kernel: str,
        case: Case,
        *,
        variant: str = "default",
        out: Tensor | None = None,
        with_lse: bool = True,
    ) -> Result:
        key = (spec, kernel, variant)
        if key not in loaded:
            module = load_kernel(
                replace(spec, backends=("torch",)), kernel, "torch", folder, variant
            )
            loaded[key] = getattr(module, kernel)
        rows = (case.q.shape[0], spec.num_q_heads)
        if out is None:
            out = torch.full((*rows, spec.head_dim_v), math.nan, dtype=case.q.dtype)
        lse = torch.full(rows, math.nan)
        lens = (case.seq_lens, case.cu_seqlens_q)[: 1 + (kernel == "prefill")]
        fault = loaded[key](
            out, lse if with_lse else None, case.q, case.k_cache, case.v_cache, case.lookup,
            *lens, case.sm_scale,
        )  # fmt: skip
        return Result(out, lse, fault or (0, 0, 0, 0))

    return call
