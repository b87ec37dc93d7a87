"""The simulator against independent references, and against what an H200 has computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.probes.probe import Arrays, differences
from tests.probes.simulated import run
from tests.probes.table import PROBES

GOLDEN = Path(__file__).parents[1] / "probes" / "h200.npz"
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def golden() -> Arrays:
    """Outputs of every probe, as `python -m tests.probes.record` has kept them."""
    if not GOLDEN.is_file():
        pytest.skip(f"{GOLDEN.name} has not been recorded on a GPU yet")
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_what_its_reference_says(name: str) -> None:
    probe = PROBES[name]
    wanted = probe.reference(probe.inputs())
    assert set(wanted) == set(probe.outputs())
    for seed in SEEDS:
        assert differences(probe, run(probe, seed), wanted) == []


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_what_a_gpu_has_given(name: str, golden: Arrays) -> None:
    probe = PROBES[name]
    wanted = {output: golden[f"{name}/{output}"] for output in probe.outputs()}
    for seed in SEEDS:
        assert differences(probe, run(probe, seed), wanted) == []


def test_the_recording_is_of_these_probes(golden: Arrays) -> None:
    assert {key.split("/")[0] for key in golden} == set(PROBES)


def test_a_difference_is_seen() -> None:
    probe = PROBES["vectors"]
    wanted = dict(probe.reference(probe.inputs()))
    wanted["out"] = wanted["out"].copy()
    wanted["out"][5] ^= 1
    assert len(differences(probe, run(probe, 0), wanted)) == 1
