"""Runs a generated package against the float64 oracle on adversarial cases.

It knows no template and no compiler: it sees the package as any other runtime does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagegen import cases, oracle
from pagegen.archs import arch
from pagegen.cases import LSE_TOLERANCE, TOLERANCE, Case, Shape
from pagegen.dtypes import dtype

Ops = Any  # a generated package: a module whose functions are made for its spec


@dataclass(frozen=True)
class Result:
    """One comparison. `error` is ||out - ref|| / ||ref||, or NaN when the call itself failed."""

    kernel: str
    backend: str
    variant: str
    case: str
    error: float
    tolerance: float
    fault: str = ""  # why it failed, empty when it did not

    @property
    def ok(self) -> bool:
        return not self.fault and self.error <= self.tolerance


def shape_of(ops: Ops) -> Shape:
    """The package's spec in the words of the cases."""
    spec = ops.manifest()["spec"]
    return Shape(
        num_q_heads=spec["num_q_heads"],
        num_kv_heads=spec["num_kv_heads"],
        head_dim=spec["head_dim"],
        head_dim_v=spec["head_dim_v"],
        block_size=spec["block_size"],
        dtype=getattr(torch, dtype(spec["dtype_query"]).torch),
        csr=spec["lookup"] == "csr",
        attention=oracle.Attention(
            spec["layout"], spec["causal"], spec["window"], spec["soft_cap"]
        ),
    )  # fmt: skip


def relative_error(out: Tensor, reference: Tensor) -> float:
    """||out - ref|| / ||ref||; infinite when out has a NaN or the reference is 0 and out is not."""
    got = out.double().cpu()
    if not bool(got.isfinite().all()):
        return math.inf
    distance = float((got - reference).norm())
    scale = float(reference.norm())
    return distance / scale if scale else (0.0 if distance == 0 else math.inf)


def lse_fault(lse: Tensor, reference: Tensor) -> str:
    """Why the lse is wrong, or nothing."""
    got = lse.double().cpu()
    empty = reference == -math.inf
    if not bool((got[empty] == -math.inf).all()):
        return "lse of a row without visible keys is not -inf"
    gap = (got - reference)[~empty].abs() - 1e-6 * reference[~empty].abs()
    worst = float(gap.max()) if gap.numel() else 0.0
    if not worst <= LSE_TOLERANCE:
        return f"lse is off by {worst:.3g}"
    return ""


def poisoned(case: Case, heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """out and lse full of NaN, so that a row nobody wrote is seen."""
    tokens = case.q.shape[0]
    out = torch.full((tokens, heads, dim), math.nan, dtype=case.q.dtype, device=case.q.device)
    lse = torch.full((tokens, heads), math.nan, dtype=torch.float32, device=case.q.device)
    return out, lse


def attention_results(
    ops: Ops, kernel: str, backend: str, variant: str, device: str, seed: int, quick: bool
) -> Iterator[Result]:
    """Decode (at several split counts) or prefill against the oracle."""
    shape = shape_of(ops)
    tolerance = TOLERANCE[str(shape.dtype).removeprefix("torch.")]
    if quick:
        made = cases.quick_cases(shape, kernel, seed=seed)
    elif kernel == "decode":
        made = cases.decode_cases(shape, seed=seed)
    else:
        made = cases.prefill_cases(shape, seed=seed)
    for case in made:
        reference, lse_reference = oracle.paged_attention(
            case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
            shape.attention, case.sm_scale,
        )  # fmt: skip
        on_device = cases.to_device(case, device)
        options: list[dict[str, int]] = [{}]
        if kernel == "decode":
            options = [{"num_splits": n} for n in ((1, 3) if quick else (1, 2, 3, 8))]
        for option in options:
            name = case.name + "".join(f", {value} splits" for value in option.values())
            out, _ = poisoned(on_device, shape.num_q_heads, shape.head_dim_v)
            try:
                out, lse = call_attention(ops, kernel, backend, variant, on_device, out, option)
            except Exception as error:
                yield Result(kernel, backend, variant, name, math.nan, tolerance, repr(error))
                continue
            yield Result(
                kernel, backend, variant, name, relative_error(out, reference), tolerance,
                lse_fault(lse, lse_reference),
            )  # fmt: skip


def call_attention(
    ops: Ops,
    kernel: str,
    backend: str,
    variant: str,
    case: Case,
    out: Tensor,
    option: dict[str, int],
) -> tuple[Tensor, Tensor]:
    """(out, lse) of one call of the package."""
    if kernel == "decode":
        result: tuple[Tensor, Tensor] = ops.decode(
            case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens,
            out=out, sm_scale=case.sm_scale, return_lse=True, backend=backend, variant=variant,
            num_splits=option["num_splits"],
        )  # fmt: skip
        return result
    result = ops.prefill(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        max_seqlen_q=case.max_seqlen_q, out=out, sm_scale=case.sm_scale, return_lse=True,
        backend=backend, variant=variant,
    )  # fmt: skip
    return result


def write_kv_result(ops: Ops, backend: str, variant: str, device: str, seed: int) -> Result:
    """Slots written exactly, every other element of the pool untouched."""
    shape = shape_of(ops)
    generator = torch.Generator().manual_seed(seed)
    num_tokens, num_blocks = 37, 40
    slots = torch.randperm(num_blocks * shape.block_size, generator=generator)[:num_tokens]
    slots[::5] = -1

    def new(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(shape.dtype)

    k = new(num_tokens, shape.num_kv_heads, shape.head_dim)
    v = new(num_tokens, shape.num_kv_heads, shape.head_dim_v)
    caches = []
    for dim in (shape.head_dim, shape.head_dim_v):
        size = [num_blocks, shape.block_size, shape.num_kv_heads, dim]
        if shape.attention.layout == "HND":
            size[1], size[2] = size[2], size[1]
        caches.append(new(*size))
    expected = [cache.clone() for cache in caches]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, shape.block_size)
            for cache, source in zip(expected, (k, v), strict=True):
                rows = (
                    cache[block]
                    if shape.attention.layout == "NHD"
                    else cache[block].transpose(0, 1)
                )
                rows[offset] = source[token]
    moved = [cache.to(device) for cache in caches]
    ops.write_kv(
        k.to(device), v.to(device), *moved, slots.to(device), backend=backend, variant=variant
    )
    wrong = sum(int((got.cpu() != want).sum()) for got, want in zip(moved, expected, strict=True))
    fault = f"{wrong} elements differ" if wrong else ""
    return Result("write_kv", backend, variant, "scatter with skips", 0.0, 0.0, fault)


def merge_results(ops: Ops, backend: str, variant: str, device: str, seed: int) -> Iterator[Result]:
    """Ordinary, one-sided, empty and foreign (+inf for empty) states."""
    shape = shape_of(ops)
    generator = torch.Generator().manual_seed(seed)
    size = (9, shape.num_q_heads, shape.head_dim_v)
    out_a = torch.randn(size, generator=generator).to(shape.dtype)
    out_b = torch.randn(size, generator=generator).to(shape.dtype)
    lse_a = torch.randn(size[:2], generator=generator) * 3
    lse_b = torch.randn(size[:2], generator=generator) * 3
    lse_a[0], lse_b[0] = -math.inf, -math.inf
    out_a[1], lse_a[1] = math.nan, -math.inf
    out_b[2], lse_b[2] = math.nan, math.inf
    reference, lse_reference = oracle.merge_states(out_a, lse_a, out_b, lse_b)
    out, lse = ops.merge_states(
        out_a.to(device), lse_a.to(device), out_b.to(device), lse_b.to(device),
        backend=backend, variant=variant,
    )  # fmt: skip
    tolerance = TOLERANCE[str(shape.dtype).removeprefix("torch.")]
    yield Result(
        "merge_states", backend, variant, "ordinary and empty states",
        relative_error(out, reference), tolerance, lse_fault(lse, lse_reference),
    )  # fmt: skip


def copy_blocks_result(ops: Ops, backend: str, variant: str, device: str, seed: int) -> Result:
    """Destination blocks equal their sources, every other block untouched."""
    shape = shape_of(ops)
    generator = torch.Generator().manual_seed(seed)
    caches = []
    for dim in (shape.head_dim, shape.head_dim_v):
        size = [12, shape.block_size, shape.num_kv_heads, dim]
        if shape.attention.layout == "HND":
            size[1], size[2] = size[2], size[1]
        caches.append(torch.randn(*size, generator=generator).to(shape.dtype))
    pairs = torch.randperm(12, generator=generator)[:6].reshape(3, 2)
    moved = [cache.to(device) for cache in caches]
    ops.copy_blocks(*moved, pairs.to(device), backend=backend, variant=variant)
    wrong = 0
    for cache, got in zip(caches, moved, strict=True):
        cache[pairs[:, 1]] = cache[pairs[:, 0]]
        wrong += int((got.cpu() != cache).sum())
    fault = f"{wrong} elements differ" if wrong else ""
    return Result("copy_blocks", backend, variant, "three pairs", 0.0, 0.0, fault)


def verify(
    ops: Ops,
    *,
    backends: tuple[str, ...] = (),
    device: str = "cpu",
    seed: int = 0,
    quick: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[Result, ...]:
    """Every variant of every kernel of `backends` (default: all the package has) on `device`.

    `quick` keeps one small case per kernel. Nothing is raised for a wrong result: read Result.ok.
    """
    rows = [r for r in runnable(ops, device) if not backends or r["backend"] in backends]
    results: list[Result] = []
    for done, row in enumerate(rows):
        kernel, backend, variant = row["kernel"], row["backend"], row["variant"]
        progress(f"{kernel} {backend} {variant}", done, len(rows))
        results += kernel_results(ops, kernel, backend, variant, device, seed, quick)
    progress("done", len(rows), len(rows))
    return tuple(results)


def runnable(ops: Ops, device: str) -> list[dict[str, Any]]:
    """The manifest's rows that `device` can run: tiles made for other GPUs are left out."""
    rows: list[dict[str, Any]] = ops.manifest()["kernels"]
    if device == "cpu":
        simulated = os.environ.get("PAGEGEN_SIMULATE") == "1"
        return [row for row in rows if row["backend"] != "cuda" or simulated]
    capability = torch.cuda.get_device_capability()
    return [
        row
        for row in rows
        if row["backend"] == "torch"
        or any(arch(target).runs_on(capability) for target in row["targets"])
    ]


def kernel_results(
    ops: Ops, kernel: str, backend: str, variant: str, device: str, seed: int, quick: bool
) -> Iterator[Result]:
    """The results of one variant; a call that raises becomes a failed result."""
    try:
        if kernel in ("decode", "prefill"):
            yield from attention_results(ops, kernel, backend, variant, device, seed, quick)
        elif kernel == "write_kv":
            yield write_kv_result(ops, backend, variant, device, seed)
        elif kernel == "merge_states":
            yield from merge_results(ops, backend, variant, device, seed)
        else:
            yield copy_blocks_result(ops, backend, variant, device, seed)
    except Exception as error:
        yield Result(kernel, backend, variant, "call", math.nan, 0.0, repr(error))
