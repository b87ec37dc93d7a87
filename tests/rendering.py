"""One kernel rendered from a Spec made in Python and imported as a module, for tests that run it.

It knows no kernel: what a module's function takes is the test's business.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from pagegen.emit import emit
from pagegen.lower import lower
from pagegen.plan import Plan
from pagegen.spec import Spec


def plan_of(spec: Spec, kernel: str, backend: str, variant: str = "default") -> Plan:
    """The plan of one variant."""
    rows = [row for row in lower(spec) if (row.kernel, row.backend) == (kernel, backend)]
    return next(row for row in rows if row.variant == variant)


def load_plan(plan: Plan, folder: Path) -> ModuleType:
    """The emitted module of a Python backend. It must be a file: Triton reads its source."""
    path = folder / f"{plan.backend}_{plan.symbol}.py"
    path.write_text(emit(plan, "specimen.yaml").text, encoding="utf-8")
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def load_kernel(
    spec: Spec, kernel: str, backend: str, folder: Path, variant: str = "default"
) -> ModuleType:
    """The module of one kernel: torch's function has the kernel's name, Triton's plan.symbol."""
    return load_plan(plan_of(spec, kernel, backend, variant), folder)
