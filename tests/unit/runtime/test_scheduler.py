"""The scheduler: what it promises, on a device that checks every slot it reads."""

from __future__ import annotations

import pytest

from pagegen.errors import RequestError
from pagegen.runtime.job import State
from pagegen.runtime.limits import Limits
from pagegen.runtime.preemption import Costs
from pagegen.runtime.sequence import Namespace
from tests.unit.runtime.world import RECOMPUTE, SWAP, answer, submit, world


def test_a_prompt_is_computed_and_answered() -> None:
    one = world()
    job = submit(one, [1, 2, 3], 5)
    assert one.run_all() == 5
    assert one.done[job] == answer([1, 2, 3], 8)
    assert job.state is State.FINISHED
    assert one.manager.num_available == 64


def test_decode_goes_first_and_prompts_take_what_is_left() -> None:
    one = world(tokens=8)
    first = submit(one, [1, 2], 20)
    one.run(one.scheduler.schedule())
    second = submit(one, list(range(20)), 2)
    sizes = []
    for _ in range(3):
        step = one.scheduler.schedule()
        assert step.chunks[0].job is first and step.chunks[0].num_tokens == 1
        sizes.append(step.chunks[1].num_tokens)
        assert [chunk.samples for chunk in step.chunks] == [True, len(sizes) == 3]
        one.run(step)
    assert sizes == [7, 7, 6]
    one.run_all()
    assert one.done[second] == answer(list(range(20)), 22)


def test_a_long_prompt_is_cut_to_max_chunk() -> None:
    one = world(tokens=32, chunk=5)
    submit(one, list(range(12)), 1)
    assert one.scheduler.schedule().chunks[0].num_tokens == 5


def test_a_stop_token_ends_an_answer() -> None:
    one = world()
    tokens = answer([7, 8], 30)
    stop = tokens[6]
    end = tokens.index(stop, 2) + 1
    job = one.scheduler.submit("r", [7, 8], max_new_tokens=28, stop_token_ids=frozenset({stop}))
    one.run_all()
    assert one.done[job] == tokens[:end]


@pytest.mark.parametrize("longest", [4, 5, 8, 9])
def test_max_model_len_is_exact(longest: int) -> None:
    one = world(longest=longest)
    job = submit(one, [1, 2, 3], 100)
    one.run_all()
    assert len(one.done[job]) == longest
    with pytest.raises(RequestError, match="max_model_len"):
        submit(one, list(range(longest)), 1)


def test_what_can_never_fit_is_refused_with_the_reason() -> None:
    one = world(num_blocks=4, block_size=4)
    with pytest.raises(RequestError, match=r"17 tokens in the cache(.|\n)*16: 4 blocks of 4"):
        submit(one, list(range(10)), 8)
    job = submit(one, list(range(10)), 7)  # the last token is never written
    one.run_all()
    assert len(one.done[job]) == 17


@pytest.mark.parametrize("prompt", [[], [[1, 2]], [1.5]])
def test_what_is_no_prompt_is_refused(prompt: list[int]) -> None:
    with pytest.raises(Exception, match=r"prompt|token ids"):
        submit(world(), prompt, 1)


def test_a_prefix_is_computed_once() -> None:
    one = world()
    shared = list(range(16))
    submit(one, [*shared, 40], 1)
    one.run_all()
    job = submit(one, [*shared, 41], 3)
    step = one.scheduler.schedule()
    assert step.chunks[0].position == 16 and step.chunks[0].num_tokens == 1
    one.run(step)
    one.run_all()
    assert one.done[job] == answer([*shared, 41], 20)


def test_namespaces_share_nothing() -> None:
    one = world()
    jobs = [
        one.scheduler.submit(
            salt, list(range(12)), max_new_tokens=4, namespace=Namespace(salt=salt)
        )
        for salt in ("a", "b")
    ]
    one.run_all()
    for job in jobs:
        assert one.done[job] == answer(list(range(12)), 16, job.name)


@pytest.mark.parametrize(("costs", "host"), [(RECOMPUTE, 0), (SWAP, 64), (SWAP, 3)])
def test_preempted_jobs_say_what_they_would_have_said(costs: Costs, host: int) -> None:
    one = world(num_blocks=10, block_size=4, costs=costs, host=host)
    jobs = [submit(one, [n, n + 1, n + 2], 25) for n in range(5)]
    one.run_all()
    assert sum(job.num_preemptions for job in jobs) > 0
    assert (one.manager.counters.swapped_out_blocks > 0) == (costs is SWAP)
    for n, job in enumerate(jobs):
        assert one.done[job] == answer([n, n + 1, n + 2], 28)


def test_the_oldest_is_never_preempted() -> None:
    one = world(num_blocks=8, block_size=4)
    oldest = submit(one, [1], 28)
    for n in range(4):
        submit(one, [n + 2], 28)
    one.run_all()
    assert oldest.num_preemptions == 0


def test_nobody_passes_the_front_of_the_queue() -> None:
    one = world(num_blocks=8, block_size=4, tokens=64)
    submit(one, list(range(20)), 4)
    one.run(one.scheduler.schedule())
    large = submit(one, list(range(100, 120)), 4)
    small = submit(one, [1], 2)
    step = one.scheduler.schedule()
    assert small not in [chunk.job for chunk in step.chunks]
    one.run(step)
    one.run_all()
    assert {large, small} <= set(one.done)


def test_priority_comes_first_and_waiting_ages() -> None:
    one = world(seqs=1, ageing=5)
    low = submit(one, [1], 3, "low", priority=3)
    order = []
    for n in range(40):
        submit(one, [n + 2], 3, f"high{n}", priority=0)
        for _ in range(3):
            order += [job.name for job in one.run(one.scheduler.schedule())]
        if low.state is State.FINISHED:
            break
    assert order[0].startswith("high")
    assert low.state is State.FINISHED, "starved"


@pytest.mark.parametrize("moment", ["waiting", "running", "in flight", "swapped"])
def test_a_job_is_aborted_at_any_moment(moment: str) -> None:
    one = world(num_blocks=10, block_size=4, costs=SWAP, host=64)
    jobs = [submit(one, [n, n + 1, n + 2], 25) for n in range(4)]
    if moment == "waiting":
        one.scheduler.abort(jobs[2])
    for _ in range(40):
        step = one.scheduler.schedule()
        if moment == "in flight" and step.chunks[-1].job is jobs[2]:
            one.scheduler.abort(jobs[2])
        one.run(step)
        wanted = {"running": State.RUNNING, "swapped": State.SWAPPED}.get(moment)
        if jobs[2].state is wanted:
            one.scheduler.abort(jobs[2])
    one.scheduler.abort(jobs[2])
    one.run_all()
    assert jobs[2].state is State.FINISHED
    assert one.manager.num_available == 10
    assert one.manager.host.num_free == 64
    for n in (0, 1, 3):
        assert one.done[jobs[n]] == answer([n, n + 1, n + 2], 28)


def test_forks_share_the_prompt_and_part_at_the_first_write() -> None:
    one = world()
    job = submit(one, list(range(10)), 6, width=3)
    one.run(one.scheduler.schedule())
    others = [one.scheduler.fork(job, f"fork{n}") for n in range(2)]
    with pytest.raises(RequestError, match="width 1"):
        one.scheduler.fork(job, "too many")
    for n, other in enumerate(others):
        other.sequence.append(0)  # the model's own token was the parent's
        one.manager.truncate(other.sequence, other.sequence.num_tokens - 2)
        other.sequence.append(30 + n)
    one.run_all()
    assert one.done[job] == answer(list(range(10)), 16)
    for n, other in enumerate(others):
        assert one.done[other] == answer([*range(10), 30 + n], 16)


def test_rows_are_kept_for_forks() -> None:
    one = world(seqs=4)
    submit(one, [1, 2], 9, width=3)
    submit(one, [3, 4], 9, width=2)
    assert len(one.scheduler.schedule().chunks) == 1


@pytest.mark.parametrize("window", [1, 4, 7])
def test_a_window_needs_no_more_than_it_sees(window: int) -> None:
    one = world(num_blocks=12, block_size=4, window=window, tokens=8)
    jobs = [submit(one, [n, n + 1, n + 2], 100) for n in range(3)]
    one.run_all()
    for n, job in enumerate(jobs):
        assert one.done[job] == answer([n, n + 1, n + 2], 103)


def test_costs_choose_the_cheaper_way() -> None:
    costs = Costs(block_bytes=1000, host_bytes_per_s=1e6, prefill_tokens_per_s=100.0)
    assert costs.swap_seconds(5) == pytest.approx(0.01)
    assert costs.recompute_seconds(50) == pytest.approx(0.5)
    assert costs.cheaper(num_tokens=50, num_blocks=5) == "swap"
    assert costs.cheaper(num_tokens=1, num_blocks=5000) == "recompute"


@pytest.mark.parametrize(
    "sizes", [(0, 1, 9), (4, 0, 9), (4, 5, 9), (4, 4, 1)], ids=["tokens", "none", "room", "length"]
)
def test_limits_under_which_nothing_runs_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(RequestError):
        Limits(*sizes)
