"""The launch arguments of every kernel, in order: the contract between host code and kernels.

It knows shapes and element types only; strides count elements and are multiples of 16 bytes.
"""

# ruff: noqa: E501 - one argument a line reads as a table

from __future__ import annotations

from pagegen.plan import Kernel, Param
from pagegen.spec import Spec


def _ptr(name: str, element: str, doc: str, *, const: bool = True) -> Param:
    return Param(name, "ptr", doc, element, const)


def _strides(tensor: str, *axes: str) -> tuple[Param, ...]:
    return tuple(
        Param(f"{tensor}_stride_{axis}", "i64", f"elements from one {axis} to the next")
        for axis in axes
    )


def _lookup(spec: Spec) -> tuple[Param, ...]:
    if spec.lookup == "csr":
        return (
            _ptr("kv_indptr", "i32", "[num_seqs + 1], first entry of each sequence in kv_indices"),
            _ptr("kv_indices", "i32", "[kv_indptr[num_seqs]], block ids"),
        )
    return (_ptr("block_table", "i32", "[num_seqs, max_blocks], block ids"),)


def _lookup_strides(spec: Spec) -> tuple[Param, ...]:
    if spec.lookup == "csr":
        return ()
    return (Param("block_table_stride_seq", "i64", "entries from one sequence's row to the next"),)


def _caches(spec: Spec, *, const: bool) -> tuple[Param, ...]:
    shape = (
        "[num_blocks, NUM_KV_HEADS, BLOCK_SIZE, {}]"
        if spec.layout == "HND"
        else "[num_blocks, BLOCK_SIZE, NUM_KV_HEADS, {}]"
    )
    return (
        _ptr("k_cache", spec.dtype_kv, shape.format("HEAD_DIM"), const=const),
        _ptr("v_cache", spec.dtype_kv, shape.format("HEAD_DIM_V"), const=const),
    )


def _cache_strides() -> tuple[Param, ...]:
    return (
        *_strides("k_cache", "block", "token", "head"),
        *_strides("v_cache", "block", "token", "head"),
    )


def _fault(checked: bool, limit: str, doc: str) -> tuple[Param, ...]:
    """The checked variants' extra arguments: a limit, and where the first fault is written."""
    if not checked:
        return ()
    return (
        Param(limit, "i64", doc),
        _ptr("fault", "i32", "[4], first fault: kind, row, column, value; kind 0 = none", const=False),
    )  # fmt: skip


def decode_params(spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """One query token per sequence. Workspace is three pointers into one allocation."""
    return (
        _ptr("out", spec.dtype_out, "[num_seqs, NUM_Q_HEADS, HEAD_DIM_V]", const=False),
        _ptr("lse", "fp32", "[num_seqs, NUM_Q_HEADS], natural log; written if write_lse", const=False),
        _ptr("q", spec.dtype_query, "[num_seqs, NUM_Q_HEADS, HEAD_DIM]"),
        *_caches(spec, const=True),
        *_lookup(spec),
        _ptr("seq_lens", "i32", "[num_seqs], tokens, this step's included"),
        _ptr("partial_out", "fp32", "[num_seqs, num_splits, NUM_Q_HEADS, HEAD_DIM_V], scratch", const=False),
        _ptr("partial_lse", "fp32", "[num_seqs, num_splits, NUM_Q_HEADS], base-2 log, scratch", const=False),
        _ptr("arrivals", "i32", "[num_seqs, NUM_KV_HEADS, GROUP_TILES], zero before and after", const=False),
        *_strides("out", "seq", "head"),
        *_strides("q", "seq", "head"),
        *_cache_strides(),
        *_lookup_strides(spec),
        Param("sm_scale", "f32", "multiplies q k"),
        Param("num_seqs", "i32", "sequences in the batch"),
        Param("num_splits", "i32", "parts a sequence is cut into, at most"),
        Param("write_lse", "i32", "0 or 1"),
        *_fault(checked, "num_blocks", "block ids must be below it"),
    )  # fmt: skip


def prefill_params(spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """Ragged queries over a cached prefix, causal aligned to the end."""
    return (
        _ptr("out", spec.dtype_out, "[num_tokens, NUM_Q_HEADS, HEAD_DIM_V]", const=False),
        _ptr("lse", "fp32", "[num_tokens, NUM_Q_HEADS], natural log; written if write_lse", const=False),
        _ptr("q", spec.dtype_query, "[num_tokens, NUM_Q_HEADS, HEAD_DIM]"),
        *_caches(spec, const=True),
        *_lookup(spec),
        _ptr("seq_lens", "i32", "[num_seqs], tokens, this step's included"),
        _ptr("cu_seqlens_q", "i32", "[num_seqs + 1], first query token of each sequence"),
        *_strides("out", "token", "head"),
        *_strides("q", "token", "head"),
        *_cache_strides(),
        *_lookup_strides(spec),
        Param("sm_scale", "f32", "multiplies q k"),
        Param("num_seqs", "i32", "sequences in the batch"),
        Param("num_q_tiles", "i32", "query tiles the grid covers, an upper bound"),
        Param("write_lse", "i32", "0 or 1"),
        *_fault(checked, "num_blocks", "block ids must be below it"),
    )  # fmt: skip


def write_kv_params(spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """New K and V scattered into their slots."""
    return (
        *_caches(spec, const=False),
        _ptr("k", spec.dtype_query, "[num_tokens, NUM_KV_HEADS, HEAD_DIM]"),
        _ptr("v", spec.dtype_query, "[num_tokens, NUM_KV_HEADS, HEAD_DIM_V]"),
        _ptr("slot_mapping", "i64", "[num_tokens], block_id * BLOCK_SIZE + offset; negative: skip"),
        *_cache_strides(),
        *_strides("k", "token", "head"),
        *_strides("v", "token", "head"),
        Param("num_tokens", "i32", "entries of slot_mapping"),
        *_fault(checked, "num_slots", "slots must be below it"),
    )


def merge_states_params(spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """Two attention states over disjoint keys become one."""
    return (
        _ptr("out", spec.dtype_out, "[num_tokens, NUM_Q_HEADS, HEAD_DIM_V]", const=False),
        _ptr("lse", "fp32", "[num_tokens, NUM_Q_HEADS], natural log", const=False),
        _ptr("out_a", spec.dtype_out, "[num_tokens, NUM_Q_HEADS, HEAD_DIM_V]"),
        _ptr("lse_a", "fp32", "[num_tokens, NUM_Q_HEADS], natural log"),
        _ptr("out_b", spec.dtype_out, "[num_tokens, NUM_Q_HEADS, HEAD_DIM_V]"),
        _ptr("lse_b", "fp32", "[num_tokens, NUM_Q_HEADS], natural log"),
        *_strides("out", "token", "head"),
        *_strides("lse", "token", "head"),
        *_strides("out_a", "token", "head"),
        *_strides("lse_a", "token", "head"),
        *_strides("out_b", "token", "head"),
        *_strides("lse_b", "token", "head"),
        Param("num_tokens", "i32", "rows of every tensor"),
        *_fault(checked, "num_rows", "num_tokens * NUM_Q_HEADS"),
    )


def copy_blocks_params(spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """Whole blocks copied inside the cache."""
    return (
        *_caches(spec, const=False),
        _ptr("src_to_dst", "i64", "[num_pairs, 2], block ids"),
        *_cache_strides(),
        Param("num_pairs", "i32", "rows of src_to_dst"),
        *_fault(checked, "num_blocks", "block ids must be below it"),
    )


def params(kernel: Kernel, spec: Spec, *, checked: bool) -> tuple[Param, ...]:
    """The launch arguments of `kernel` in order."""
    table = {
        "decode": decode_params,
        "prefill": prefill_params,
        "write_kv": write_kv_params,
        "merge_states": merge_states_params,
        "copy_blocks": copy_blocks_params,
    }
    return table[kernel](spec, checked=checked)
