"""Whatever happens, in whatever sizes, answers are those of an undisturbed run."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from pagegen.runtime.job import Job, State
from tests.unit.runtime.world import RECOMPUTE, SWAP, answer, submit, world


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_happens_everybody_gets_the_right_tokens(data: st.DataObject) -> None:
    """Sizes, arrivals, aborts, forks, preemptions and evictions at random; tokens undisturbed."""
    block_size = data.draw(st.sampled_from([1, 2, 3, 4, 16, 256]))
    num_blocks = data.draw(st.integers(2, 24))
    room = num_blocks * block_size
    one = world(
        num_blocks,
        block_size,
        tokens=data.draw(st.integers(6, 40)),
        seqs=data.draw(st.integers(1, 6)),
        longest=min(room, 60) + 1,
        host=data.draw(st.sampled_from([0, 2, 30])),
        costs=data.draw(st.sampled_from([SWAP, RECOMPUTE])),
        watermark=data.draw(st.sampled_from([0.0, 0.1, 0.5])),
        ageing=data.draw(st.sampled_from([1, 10, 1000])),
        chunk=data.draw(st.sampled_from([0, 1, 7])),
    )
    jobs: list[tuple[Job, list[int], int]] = []
    aborted: set[Job] = set()
    for number in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            length = data.draw(st.integers(1, min(room, 40)))
            start = data.draw(st.integers(0, 2))
            prompt = [(start + i) % 5 for i in range(length)]
            new = data.draw(st.integers(1, 20))
            wanted = min(length + new, one.scheduler.limits.max_model_len)
            if wanted - 1 <= room and length < one.scheduler.limits.max_model_len:
                priority = data.draw(st.integers(0, 2))
                jobs.append(
                    (submit(one, prompt, new, f"{number}", priority=priority), prompt, wanted)
                )
        if jobs and data.draw(st.integers(0, 9)) == 0:
            job = data.draw(st.sampled_from(jobs))[0]
            if job.state is not State.FINISHED:
                one.scheduler.abort(job)
                aborted.add(job)
        one.run(one.scheduler.schedule())
    one.run_all()
    for job, prompt, wanted in jobs:
        if job not in aborted:
            assert one.done[job] == answer(prompt, wanted)
    assert one.manager.num_available == num_blocks
    assert not np.any(one.manager.pool.ref_count)
