"""The default variants never read a tensor's values: they would wait for the device.

Tensors on torch's meta device have no values, and raise when one is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.plan import KERNELS
from tests.rendering import load_kernel
from tests.specimens import specimen

BF16 = torch.bfloat16


def meta(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor without values."""
    return torch.empty(size, dtype=dtype, device="meta")


def arguments(kernel: str) -> tuple[Any, ...]:
    """A call of three sequences and 200 tokens."""
    caches = meta(9, 4, 2, 32), meta(9, 4, 2, 32)
    lens = meta(3, dtype=torch.int32)
    table = meta(3, 5, dtype=torch.int32)
    state = meta(200, 4, 32), meta(200, 4, dtype=torch.float32)
    return {
        "decode": (meta(3, 4, 32), meta(3, 4), meta(3, 4, 32), *caches, table, lens, 0.1),
        "prefill": (
            *state, meta(200, 4, 32), *caches, table, lens, meta(4, dtype=torch.int32), 0.1,
        ),
        "write_kv": (*caches, meta(9, 2, 32), meta(9, 2, 32), meta(7, dtype=torch.int64)),
        "merge_states": (*state, *state, *state),
        "copy_blocks": (*caches, meta(3, 2, dtype=torch.int64)),
    }[kernel]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("changes", [{}, {"window": 5, "soft_cap": 3.0}])
def test_no_value_is_read(kernel: str, changes: dict[str, Any], tmp_path: Path) -> None:
    module = load_kernel(specimen(backends=("torch",), **changes), kernel, "torch", tmp_path)
    assert getattr(module, kernel)(*arguments(kernel)) is None
