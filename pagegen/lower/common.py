"""What every family shares: the constants of heads, dims and masks, and the plan's frame.

It knows no tile sizes: those are each family's own.
"""

from __future__ import annotations

from pagegen.dtypes import dtype
from pagegen.lower.params import params
from pagegen.plan import Backend, Constant, Kernel, Plan
from pagegen.spec import Spec


def float_literal(value: float, backend: Backend) -> str:
    """`value` in the target language, exact."""
    text = repr(float(value))
    return f"{text}f" if backend == "cuda" else text


def head_constants(spec: Spec) -> tuple[Constant, ...]:
    """Heads and dims."""
    return (
        Constant("NUM_Q_HEADS", spec.num_q_heads, "query heads"),
        Constant("NUM_KV_HEADS", spec.num_kv_heads, "KV heads"),
        Constant("GROUP", spec.group, "query heads per KV head"),
        Constant("HEAD_DIM", spec.head_dim, "elements of a query or key head"),
        Constant("HEAD_DIM_V", spec.head_dim_v, "elements of a value or output head"),
    )


def cache_constants(spec: Spec) -> tuple[Constant, ...]:
    """Paging."""
    return (Constant("BLOCK_SIZE", spec.block_size, "tokens of a KV block"),)


def mask_constants(spec: Spec, backend: Backend) -> tuple[Constant, ...]:
    """Window and soft cap, present only when they are on."""
    rows: list[Constant] = []
    if spec.window:
        rows.append(Constant("WINDOW", spec.window, "visible keys, the query's own included"))
    if spec.soft_cap:
        literal = float_literal(spec.soft_cap, backend)
        rows.append(
            Constant("SOFT_CAP", literal, "scores become SOFT_CAP * tanh(score / SOFT_CAP)")
        )
    return tuple(rows)


def torch_constants() -> tuple[Constant, ...]:
    """What bounds the memory of decode and prefill in plain PyTorch."""
    return (
        Constant(
            "TILE_TOKENS",
            64,
            "query tokens of a prefill tile, at most",
            "64 rows for each query head of a group make a matrix product efficient",
        ),
        Constant(
            "CPU_ELEMENTS",
            1 << 19,
            "elements of a temporary tensor on a CPU, about",
            "2 MB of fp32 stay in a core's cache from one operation to the next",
        ),
        Constant(
            "DEVICE_ELEMENTS",
            1 << 25,
            "elements of a temporary tensor elsewhere, about",
            "128 MB of fp32: few launches, and small beside any model",
        ),
    )


def attention_constants(spec: Spec, backend: Backend) -> tuple[Constant, ...]:
    """Everything decode and prefill name."""
    return head_constants(spec) + cache_constants(spec) + mask_constants(spec, backend)


def frame(
    spec: Spec,
    kernel: Kernel,
    backend: Backend,
    variant: str,
    target: str,
    constants: tuple[Constant, ...],
    *,
    checked: bool,
    num_warps: int,
    num_stages: int,
    dynamic_smem_bytes: int,
    allow_stack: bool = False,
) -> Plan:
    """A plan with everything that follows from the spec filled in."""
    return Plan(
        name=spec.name,
        spec_digest=spec.digest,
        kernel=kernel,
        backend=backend,
        variant=variant,
        targets=(target,) if target else (),
        query=dtype(spec.dtype_query),
        kv=dtype(spec.dtype_kv),
        out=dtype(spec.dtype_out),
        constants=constants,
        params=params(kernel, spec, checked=checked),
        causal=spec.causal,
        window=bool(spec.window),
        soft_cap=bool(spec.soft_cap),
        csr=spec.lookup == "csr",
        hnd=spec.layout == "HND",
        checked=checked,
        num_warps=num_warps,
        num_stages=num_stages,
        dynamic_smem_bytes=dynamic_smem_bytes,
        allow_stack=allow_stack,
    )
