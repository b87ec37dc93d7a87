"""What each verb shows: rows for the table and the same facts as a JSON document.

It knows every stage's output type and prints nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pagegen.build import Built
from pagegen.compile import Artifact
from pagegen.explain import Floor
from pagegen.plan import Plan
from pagegen.spec import Spec

Table = tuple[str, list[str], list[list[str]]]  # title, columns, rows
VERIFIED = "cubin/verified.json"


@dataclass(frozen=True)
class Worst:
    """The largest error of one kernel variant over its cases."""

    kernel: str
    backend: str
    variant: str
    cases: int
    error: float
    tolerance: float


@dataclass(frozen=True)
class Verdict:
    """What verify found, on which device."""

    device: str
    rows: tuple[Worst, ...]
    failures: tuple[str, ...]

    @classmethod
    def of(cls, device: str, results: Sequence[Any]) -> Verdict:
        """Collect verify.Result rows (not imported here: that would import torch)."""
        grouped: dict[tuple[str, str, str], list[Any]] = {}
        for result in results:
            grouped.setdefault((result.kernel, result.backend, result.variant), []).append(result)
        rows = tuple(
            Worst(*key, len(some), max(r.error for r in some), some[0].tolerance)
            for key, some in grouped.items()
        )
        failures = tuple(
            f"{r.backend} {r.kernel} {r.variant}, {r.case}: "
            + (r.fault or f"error {r.error:.3g}, tolerance {r.tolerance:.3g}")
            for r in results
            if not r.ok
        )
        return cls(device, rows, failures)

    def error(self, plan: Plan) -> str:
        """The largest error of a plan's variant, or a dash where it was not run."""
        for row in self.rows:
            if (row.kernel, row.backend, row.variant) == (plan.kernel, plan.backend, plan.variant):
                return f"{row.error:.1e}" if row.tolerance else "exact"
        return "-"

    def document(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "kernels": [vars(row) for row in self.rows],
            "failures": list(self.failures),
        }

    def write(self, folder: Path) -> None:
        """Keep the verdict beside the cubins; a folder that changes loses it."""
        aside = folder / f"{VERIFIED}.{os.getpid()}"
        try:
            aside.write_text(json.dumps(self.document(), indent=1) + "\n")
            os.replace(aside, folder / VERIFIED)
        except OSError:
            aside.unlink(missing_ok=True)  # a read-only folder is verified again next time

    @classmethod
    def read(cls, folder: Path) -> Verdict | None:
        """The kept verdict when nothing failed; None when there is none or it cannot be read."""
        try:
            found = json.loads((folder / VERIFIED).read_text())
            rows = tuple(Worst(**row) for row in found["kernels"])
            verdict = cls(found["device"], rows, tuple(found["failures"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if verdict.failures else verdict


def kilobytes(num_bytes: int) -> str:
    return f"{num_bytes / 1024:.1f}" if num_bytes % 1024 else str(num_bytes // 1024)


def spec_document(spec: Spec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec)}


def spec_rows(specs: Sequence[Spec]) -> Table:
    columns = ["name", "heads", "dim", "block", "kv", "attention", "arch"]
    rows = []
    for spec in specs:
        dim = str(spec.head_dim)
        if spec.head_dim_v != spec.head_dim:
            dim += f"/{spec.head_dim_v}"
        mask = "causal" if spec.causal else "full"
        mask += f", window {spec.window}" if spec.window else ""
        mask += f", cap {spec.soft_cap:g}" if spec.soft_cap else ""
        rows.append(
            [
                spec.name,
                f"{spec.num_q_heads}/{spec.num_kv_heads}",
                dim,
                f"{spec.block_size} {spec.layout} {spec.lookup}",
                spec.dtype_kv,
                mask,
                " ".join(spec.archs),
            ]
        )
    return "specs", columns, rows


def plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "symbol": plan.symbol,
        "kernel": plan.kernel,
        "backend": plan.backend,
        "variant": plan.variant,
        "targets": list(plan.targets),
        "constants": {row.name: row.value for row in plan.constants},
        "num_warps": plan.num_warps,
        "num_stages": plan.num_stages,
        "dynamic_smem_bytes": plan.dynamic_smem_bytes,
        "digest": plan.digest,
    }


def plan_rows(plan: Plan) -> Table:
    title = f"{plan.backend} {plan.kernel} {plan.variant}  [{' '.join(plan.targets) or 'any'}]"
    rows = [[row.name, str(row.value), row.doc, row.reason] for row in plan.constants]
    if plan.backend != "torch":
        rows.append(["num_warps", str(plan.num_warps), "warps of a thread block", ""])
        rows.append(["num_stages", str(plan.num_stages), "tiles in flight", ""])
    if plan.dynamic_smem_bytes:
        rows.append(["dynamic_smem_bytes", str(plan.dynamic_smem_bytes), "of a thread block", ""])
    return title, ["number", "value", "meaning", "reason"], rows


def built_rows(built: Built, verdict: Verdict | None) -> Table:
    columns = ["kernel", "backend", "variant", "arch", "regs", "spill B", "smem KB", "CTAs/SM"]
    columns += ["cubin KB", "max error"]
    by_symbol: dict[str, list[Artifact]] = {}
    for artifact in built.artifacts:
        by_symbol.setdefault(artifact.symbol, []).append(artifact)
    rows = []
    for plan in built.package.plans:
        error = verdict.error(plan) if verdict else "-"
        head = [plan.kernel, plan.backend, plan.variant]
        if plan.backend == "torch":
            rows.append([*head, "any", "-", "-", "-", "-", "-", error])
        for artifact in by_symbol.get(plan.symbol, []):
            used = artifact.resources
            rows.append(
                [
                    *head,
                    artifact.arch,
                    str(used.registers),
                    str(used.spill_bytes),
                    kilobytes(used.static_smem_bytes + used.dynamic_smem_bytes),
                    str(used.ctas_per_sm),
                    kilobytes(len(artifact.code)),
                    error,
                ]
            )
    return built.package.spec.name, columns, rows


def built_line(built: Built, verdict: Verdict | None) -> str:
    state = "written" if built.changed else "unchanged"
    checked = f", verified on {verdict.device}" if verdict else ", not verified"
    return f"{built.folder}: {len(built.package.plans)} kernels, {state}{checked}"


def built_document(built: Built, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "folder": str(built.folder),
        "changed": built.changed,
        "artifacts": [artifact.to_row() for artifact in built.artifacts],
        "verified": verdict.document() if verdict else None,
    }


def verdict_rows(folder: Path, verdict: Verdict) -> Table:
    rows = [
        [row.kernel, row.backend, row.variant, str(row.cases), f"{row.error:.1e}",
         f"{row.tolerance:.1e}"]
        for row in verdict.rows
    ]  # fmt: skip
    columns = ["kernel", "backend", "variant", "cases", "max error", "tolerance"]
    return f"{folder} on {verdict.device}", columns, rows


def floor_document(floor: Floor) -> dict[str, Any]:
    shape = floor.shape
    return {
        "kernel": shape.kernel,
        "num_seqs": shape.num_seqs,
        "new": shape.new,
        "cached": shape.cached,
        "bytes": floor.num_bytes,
        "flops": floor.flops,
        "floor_us": floor.us,
        "bound": floor.bound,
    }


def floor_rows(spec: Spec, floors: Sequence[Floor]) -> Table:
    rows = []
    for floor in floors:
        shape = floor.shape
        rows.append(
            [
                shape.kernel,
                str(shape.num_seqs),
                f"{shape.new}+{shape.cached}",
                f"{floor.num_bytes / 1e6:.1f}",
                f"{floor.flops / 1e9:.1f}",
                f"{floor.us:.1f}",
                floor.bound,
            ]
        )
    columns = ["kernel", "seqs", "new+cached", "MB", "GFLOP", "floor us", "bound"]
    return f"{spec.name}: the least time a shape can take", columns, rows


def package_rows(out: Path) -> Table:
    rows = []
    for manifest in sorted(out.glob("*/manifest.json")):
        found = json.loads(manifest.read_text())
        cubins = sorted((manifest.parent / "cubin").glob("*.cubin"))
        archs = sorted({path.name.split(".")[-2] for path in cubins})
        kernels = sorted({row["kernel"] for row in found["kernels"]})
        rows.append(
            [found["name"], found["spec"]["digest"][:8], " ".join(kernels), str(len(cubins)),
             " ".join(archs) or "-"]
        )  # fmt: skip
    return str(out), ["name", "spec", "kernels", "cubins", "compiled for"], rows
