"""The specs whose kernels are changed: few and small, and together they reach all code.

A change is tried on one after the other until it is caught, so the most telling come first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pagegen.lower import lower
from pagegen.plan import Kernel, Plan
from pagegen.spec import Spec
from tests.kernels.specs import make_spec
from tests.specimens import specimen

ATTENTION: Final[dict[str, dict[str, Any]]] = {
    # Padding: 40 is no multiple of 16. No tile of keys lies in one block of 24. V wider than K.
    "padded": {"heads": (6, 2), "dims": (40, 72), "block_size": 24, "layout": "HND"},
    # Two columns of query heads, two blocks of 13 and 12 for a KV head, K wider than V.
    "window": {
        "heads": (25, 1), "dims": (64, 32), "block_size": 4, "lookup": "csr", "window": 46,
        "dtype": "bf16",
    },
    # One block id for each token; every head its own KV head; no mask but the end.
    "full": {"heads": (2, 2), "dims": (32, 32), "block_size": 1, "causal": False},
    # Rows of two lines, of which the second is not whole; tiles within blocks.
    "cap": {"heads": (4, 2), "dims": (96, 80), "block_size": 32, "soft_cap": 5.0},
    # The tiles of the widest heads.
    "wide": {"heads": (2, 1), "dims": (256, 256), "block_size": 128, "window": 50, "dtype": "bf16"},
}  # fmt: skip
MOVING: Final[dict[str, dict[str, Any]]] = {
    "bf16": {},
    # A row of V is 24 vectors: neither a token's rows nor a group of them fill a thread block.
    "parts": {
        "num_q_heads": 6, "num_kv_heads": 3, "head_dim": 40, "head_dim_v": 192, "block_size": 24,
        "layout": "HND", "dtype_query": "fp16", "dtype_kv": "fp16", "dtype_out": "fp16",
    },
    "parts of K": {"head_dim": 192, "head_dim_v": 40, "block_size": 24},
    # More rows of a token than registers hold.
    "passes": {"num_q_heads": 130, "num_kv_heads": 130, "head_dim": 256, "head_dim_v": 256},
}  # fmt: skip
MERGING: Final[dict[str, dict[str, Any]]] = {
    **{name: MOVING[name] for name in ("bf16", "parts")},
    # A lane takes two vectors of a row.
    "fp32": {"head_dim": 256, "head_dim_v": 256, "dtype_out": "fp32", "kernels": ("merge_states",)},
}


def specs_of(kernel: Kernel) -> dict[str, Spec]:
    """The specs for one kernel, by name."""
    if kernel in ("decode", "prefill"):
        made = {name: make_spec(**row) for name, row in ATTENTION.items()}
        return {name: replace(spec, kernels=(kernel,), backends=("cuda",), archs=("sm_90a",))
                for name, spec in made.items()}  # fmt: skip
    rows = MERGING if kernel == "merge_states" else MOVING
    kernels: tuple[Kernel, ...] = ("merge_states",)
    if kernel != "merge_states":
        kernels = ("write_kv", "copy_blocks")
    common = {"backends": ("cuda",), "archs": ("sm_90a",), "kernels": kernels}
    return {name: specimen(**{**common, **row}) for name, row in rows.items()}


def plans_of(spec: Spec, variant: str) -> dict[str, Plan]:
    """The plans of one variant, by kernel."""
    return {plan.kernel: plan for plan in lower(spec) if plan.variant == variant}
