"""Emitted text against files: a change of a template shows its effect in the same review.

The packages under generated/ are the large goldens (`pagegen build --check`); here are the smallest
kernels of each backend, for a spec that takes the other branch of every template: HND and fp16.

    pytest tests/golden --update-golden        # rewrites the files after a change that is meant
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pagegen.emit import emit
from pagegen.lower import lower
from tests.specimens import specimen

FOLDER = Path(__file__).parent
SPEC = specimen(
    layout="HND", dtype_query="fp16", dtype_kv="fp16", dtype_out="fp16", archs=("sm_80",)
)


@pytest.mark.parametrize("backend", ["cuda", "triton", "torch"])
@pytest.mark.parametrize("kernel", ["copy_blocks", "merge_states"])
@pytest.mark.parametrize("variant", ["default", "checked"])
def test_emitted_text(
    backend: str, kernel: str, variant: str, request: pytest.FixtureRequest
) -> None:
    plan = next(
        plan
        for plan in lower(SPEC)
        if (plan.backend, plan.kernel, plan.variant) == (backend, kernel, variant)
    )
    source = emit(plan, SPEC.file_name)
    path = FOLDER / f"{source.path}.txt"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.text)
    assert source.text == path.read_text(), f"{path}: if meant, run with --update-golden"
