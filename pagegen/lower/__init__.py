"""Spec -> Plans: one function per kernel family decides every number and says why.

It knows no template and no compiler.
"""

from __future__ import annotations

from dataclasses import replace

from pagegen.archs import arch
from pagegen.lower.cache import lower_copy_blocks, lower_write_kv
from pagegen.lower.decode import lower_decode
from pagegen.lower.merge import lower_merge_states
from pagegen.lower.prefill import lower_prefill
from pagegen.plan import Backend, Plan, check
from pagegen.spec import Spec

FAMILIES = {
    "decode": lower_decode,
    "prefill": lower_prefill,
    "write_kv": lower_write_kv,
    "merge_states": lower_merge_states,
    "copy_blocks": lower_copy_blocks,
}


def targets_of(spec: Spec, backend: Backend) -> tuple[str, ...]:
    """The targets a backend compiles for; torch has one, without a name."""
    if backend == "torch":
        return ("",)
    return tuple(name for name in spec.archs if backend != "cuda" or arch(name).vendor == "cuda")


def lower(spec: Spec) -> tuple[Plan, ...]:
    """Every plan of `spec`, each for the targets that can run it, default variant first.

    Raises PlanError or TargetError when a requested kernel has no legal plan on a target.
    """
    plans: list[Plan] = []
    for kernel in spec.kernels:
        for backend in spec.backends:
            archs = targets_of(spec, backend)[::-1]  # the newest target names the default
            merged: dict[Plan, list[str]] = {}
            for name in archs:
                for plan in FAMILIES[kernel](spec, backend, name):
                    merged.setdefault(replace(plan, targets=()), []).append(name)
            taken: set[str] = set()
            for plan, names in sorted(merged.items(), key=lambda item: item[0].checked):
                # Targets that need other tiles get a variant of their own: default_sm_86.
                variant = plan.variant
                if variant in taken:
                    variant = f"{variant}_{names[0]}"
                taken.add(variant)
                targets = () if backend == "torch" else tuple(names[::-1])
                plans.append(replace(plan, variant=variant, targets=targets))
    for plan in plans:
        check(plan)
    return tuple(plans)
