"""Paged attention by layer: what a package must have, and what a step's kinds of rows give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagegen.errors import PackageError
from pagegen.runtime.attention import PagedAttention
from pagegen.runtime.batch import SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.dispatcher import Dispatcher
from pagegen.runtime.kv_cache import KvCache
from pagegen.runtime.loader import Ops
from tests.tiny_models import tiny_package


def paged(ops: Ops) -> PagedAttention:
    return PagedAttention(ops, KvCache(ops, 2, 16), Dispatcher.for_package(ops))


def test_csr_packages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="lookup csr"):
        paged(tiny_package(tmp_path, name="tiny_csr", lookup="csr"))


def test_packages_without_an_op_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="without prefill"):
        paged(tiny_package(tmp_path, name="tiny_half", kernels=("decode", "write_kv")))


def test_a_mixed_step_gives_what_its_parts_give_alone(ops: Ops) -> None:
    """Three sequences at once in one cache, and one after the other in another."""
    torch.manual_seed(0)
    records = [
        SequenceInput(0, [1] * 6, 0, [3, 9]),
        SequenceInput(1, [2], 0, [5]),
        SequenceInput(2, [3] * 3, 0, [7]),
    ]
    q, k, v = (torch.randn(10, heads, 16) for heads in (4, 2, 2))
    tokens = (slice(0, 6), slice(6, 7), slice(7, 10))
    builder = BatchBuilder(block_size=4, max_num_seqs=3, max_num_tokens=16, max_model_len=8)
    together = paged(ops).begin(builder.build(records))
    order = torch.tensor([6, *range(6), *range(7, 10)])  # one-token rows first
    out = torch.empty(10, 4, 16)
    out[order] = together.attend(1, q[order], k[order], v[order])
    for record, its in zip(records, tokens, strict=True):
        alone = paged(ops).begin(builder.build([record]))
        torch.testing.assert_close(out[its], alone.attend(1, q[its], k[its], v[its]))
