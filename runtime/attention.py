"""Paged attention of a layer: its new keys and values into the cache, then its queries over it.

It knows no model: layers come by number, and a step's rows as a Batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pagegen.dtypes import dtype
from pagegen.errors import PackageError
from pagegen.runtime.batch import Batch
from pagegen.runtime.dispatcher import Choice, Dispatcher
from pagegen.runtime.kv_cache import KvCache

NEEDED = ("write_kv", "decode", "prefill")


class PagedAttention:
    """A package's ops over one cache, with the kernel for each shape from a dispatcher."""

    def __init__(self, ops: Any, cache: KvCache, dispatcher: Dispatcher) -> None:
        """Raises PackageError for a package that lacks an op, or takes csr tables."""
        facts = cache.facts
        lacking = [name for name in NEEDED if name not in facts.kernels]
        if lacking or facts.lookup != "table":
            raise PackageError(
                f"a package with lookup {facts.lookup}"
                + (f" and without {', '.join(lacking)}" if lacking else ""),
                allowed=f"lookup table, and {', '.join(NEEDED)}",
                remedy=f"change {facts.file} and build it again",
            )
        self.ops = ops
        self.cache = cache
        self.dispatcher = dispatcher
        self.out_shape = facts.num_q_heads, facts.head_dim_v
        self.out_dtype = getattr(torch, dtype(facts.dtype_out).torch)
        # Scratch of split decode. One that became too small is kept: a captured graph may use it.
        self._workspaces: list[torch.Tensor] = []

    def begin(self, batch: Batch) -> AttentionStep:
        """Choose the kernels of a step, and their scratch, which all its layers share.

        Call it before a graph is captured: it may allocate.
        """
        decode = prefill = workspace = None
        if batch.decode is not None:
            decode = self.dispatcher.choose_decode(batch.decode.num_seqs, batch.decode.max_seq_len)
            workspace = self._workspace(batch.decode.num_seqs, decode.num_splits)
        if batch.prefill is not None:
            rows = batch.prefill
            prefill = self.dispatcher.choose_prefill(
                rows.num_seqs, rows.max_seq_len, rows.max_seqlen_q
            )
        return AttentionStep(self, batch, decode, prefill, workspace)

    def _workspace(self, num_seqs: int, num_splits: int) -> torch.Tensor | None:
        num_bytes = self.ops.workspace_bytes(num_seqs, num_splits)
        if num_bytes == 0:
            return None
        if not self._workspaces or self._workspaces[-1].nbytes < num_bytes:
            fresh = torch.zeros(2 * num_bytes, dtype=torch.uint8, device=self.cache.device)
            self._workspaces.append(fresh)
        return self._workspaces[-1]


@dataclass(frozen=True)
class AttentionStep:
    """One step's attention, for every layer of the model."""

    attention: PagedAttention
    batch: Batch
    decode: Choice | None
    prefill: Choice | None
    workspace: torch.Tensor | None

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sm_scale: float | None = None,
    ) -> torch.Tensor:
        """q [num_tokens, num_q_heads, head_dim], k and v [num_tokens, num_kv_heads, dim]; returns
        [num_tokens, num_q_heads, head_dim_v]. Captured in a graph if the step's batch is padded."""
        attention, batch = self.attention, self.batch
        ops, k_cache, v_cache = attention.ops, attention.cache.k[layer], attention.cache.v[layer]
        ops.write_kv(k, v, k_cache, v_cache, batch.slot_mapping)
        rows, chunks = batch.decode, batch.prefill
        split = chunks.first_token if chunks is not None else q.shape[0]
        shape = (q.shape[0], *attention.out_shape)
        out = torch.empty(shape, dtype=attention.out_dtype, device=q.device)
        if rows is not None and self.decode is not None:
            ops.decode(
                q[:split],
                k_cache,
                v_cache,
                rows.block_table,
                rows.seq_lens,
                out=out[:split],
                sm_scale=sm_scale,
                num_splits=self.decode.num_splits,
                workspace=self.workspace,
                backend=self.decode.backend,
                variant=self.decode.variant,
            )
        if chunks is not None and self.prefill is not None:
            ops.prefill(
                q[split:],
                k_cache,
                v_cache,
                chunks.block_table,
                chunks.seq_lens,
                chunks.cu_seqlens_q,
                max_seqlen_q=chunks.max_seqlen_q,
                out=out[split:],
                sm_scale=sm_scale,
                backend=self.prefill.backend,
                variant=self.prefill.variant,
            )
        return out
