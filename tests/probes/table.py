"""Every probe by name: together they touch every primitive of emitted CUDA kernels."""

from __future__ import annotations

from tests.probes.blocks import BLOCK_PROBES
from tests.probes.conversions import CONVERSIONS
from tests.probes.copies import COPIES
from tests.probes.pipeline import pipeline
from tests.probes.probe import Probe
from tests.probes.products import PRODUCTS
from tests.probes.warps import WARPS

ROWS: tuple[Probe, ...] = (
    *WARPS,
    *CONVERSIONS,
    *COPIES,
    *PRODUCTS,
    *BLOCK_PROBES,
    pipeline(),
)
PROBES: dict[str, Probe] = {probe.name: probe for probe in ROWS}
assert len(PROBES) == len(ROWS)
