"""Beams wait for each other while they press each other out of memory: all get through."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from pagegen.errors import RequestError
from pagegen.runtime.loader import Ops
from pagegen.runtime.request import BeamParams, Handle, Request
from pagegen.runtime.scheduler import FIRST
from tests.unit.runtime_models.engines import RECOMPUTE, SWAP, engine, prompts, settle


def wanted(rng: random.Random) -> list[Request]:
    """Beam searches and plain requests of any priority that fit alone."""
    return [
        Request(
            prompts((rng.randrange(1, 14),), seed=number)[0],
            max_new_tokens=rng.randrange(4, 11),
            stop_token_ids=(),
            beam=BeamParams(3) if rng.random() < 0.6 else None,
            priority=rng.randrange(3),
        )
        for number in range(10)
    ]


def texts(handles: list[Handle]) -> list[list[int]]:
    return [handle.outputs[0].token_ids for handle in handles]


def pressed(ops: Ops, seed: int) -> bool:
    """One run; whether a family had to be let through."""
    rng = random.Random(seed)
    one = engine(
        ops,
        num_blocks=rng.choice([12, 13, 14]),
        watermark=0.0,
        num_host_blocks=rng.choice([0, 100]),
        costs=rng.choice([SWAP, RECOMPUTE]),
        max_num_seqs=12,
    )
    one.scheduler.limits = replace(one.scheduler.limits, ageing_steps=rng.choice([1, 2, 5]))
    handles: list[Handle] = []
    waiting = wanted(rng)
    let_through = False
    for number in range(3000):
        if waiting and number % 3 == 0:
            with suppress(RequestError):  # it would not fit alone
                handles.append(one.submit(waiting.pop()))
        if not one.has_work and not waiting:
            break
        one.step()
        let_through |= any(job.priority == FIRST for job in one.scheduler.waiting)
    calm = engine(ops, num_blocks=400, max_num_seqs=40).generate(
        [handle.request for handle in handles]
    )
    assert texts(handles) == texts(calm)
    settle(one)
    return let_through


@pytest.mark.parametrize("seed", range(8))
def test_whoever_waits_for_whom_everybody_gets_the_right_tokens(ops: Ops, seed: int) -> None:
    pressed(ops, seed)


@pytest.mark.parametrize("seed", [49, 59, 72, 90])
def test_two_families_that_hold_what_the_other_needs_do_not_wait_forever(
    ops: Ops, seed: int
) -> None:
    assert pressed(ops, seed)
