"""The simulator bites: changed kernels are noticed, but for those that are known not to be wrong.

`python -m tests.mutation.run` tries every change; here is what is most telling, and a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pagegen.plan import KERNELS, Kernel
from tests.mutation.jobs import Job, is_about_order, jobs, lost, work
from tests.mutation.pool import run_all
from tests.mutation.survivors import reason
from tests.mutation.workshop import Workshop

STEP = 40  # of the sample


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """The simulator, compiled once."""
    yield Workshop.open(tmp_path_factory.mktemp("workshop"))


def jobs_of(kernel: Kernel, workshop: Workshop) -> list[Job]:
    """Every change to a kernel."""
    return jobs(kernel, workshop, os.cpu_count() or 1, few=True)


def check(found: list[Job], least: int) -> None:
    """Try them; no survivor may be unknown, and few may be none at all."""
    rows = [row for _, row in run_all(found, work, lost, os.cpu_count() or 1)]
    assert sum(row.outcome == "caught" for row in rows) >= least
    unknown = [row for row in rows if row.outcome == "survived" and not reason(row)]
    assert not unknown


@pytest.mark.parametrize(("kernel", "least"), [("decode", 24), ("prefill", 16)])
def test_every_change_of_order_is_noticed(kernel: Kernel, least: int, workshop: Workshop) -> None:
    """Barriers, waits, commits, arrivals, stages: left out, weakened, late."""
    check([job for job in jobs_of(kernel, workshop) if is_about_order(job.operator)], least)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sample_of_all_changes_is_noticed(kernel: Kernel, workshop: Workshop) -> None:
    sample = jobs_of(kernel, workshop)[::STEP]
    check(sample, len(sample) // 2)
