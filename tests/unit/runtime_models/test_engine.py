"""An engine says what transformers says, however it batches, cuts, shares, preempts and fails."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
import torch

from pagegen.errors import PagegenError, RequestError
from pagegen.runtime.attention import AttentionStep
from pagegen.runtime.loader import Ops
from pagegen.runtime.request import Event, Request
from tests.unit.runtime_models.engines import (
    LENGTHS,
    NUM_TOKENS,
    RECOMPUTE,
    SWAP,
    answers,
    engine,
    expected,
    prompts,
    requests,
    settle,
)

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 9},
    "chunks of 3": {"max_chunk": 3},
    "one at a time": {"max_num_seqs": 1},
    "recomputed": {"num_blocks": 14},
    "swapped": {"num_blocks": 14, "num_host_blocks": 64, "costs": SWAP},
    "little host memory": {"num_blocks": 14, "num_host_blocks": 4, "costs": SWAP},
    "all of it": {
        "num_blocks": 14,
        "num_host_blocks": 64,
        "costs": SWAP,
        "max_num_batched_tokens": 9,
    },
    "nothing shared": {"prefix_caching": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_transformers(ops: Ops, way: str) -> None:
    given = prompts()
    one = engine(ops, **WAYS[way])
    assert answers(one.generate(requests(given))) == expected(given)
    counters = one.manager.counters
    assert (counters.preemptions + counters.swapped_out_blocks > 0) == ("num_blocks" in WAYS[way])
    assert (counters.swapped_in_blocks > 0) == ("costs" in WAYS[way])
    settle(one)


@pytest.mark.parametrize("way", ["batched", "swapped"])
def test_a_shared_prefix_is_computed_once_and_changes_nothing(ops: Ops, way: str) -> None:
    shared = prompts((20,))[0]
    given = [shared + more for more in prompts((1, 2, 5, 9, 4), seed=2)]
    one = engine(ops, **WAYS[way])
    for _ in range(2):
        assert answers(one.generate(requests(given))) == expected(given)
    assert one.metrics().prefix_hit_rate > 0.4
    settle(one)


def test_lengths_are_exact_and_a_stop_token_is_the_last(ops: Ops) -> None:
    given = prompts((6,))
    (text,) = expected(given)
    stop = text[5]
    end = text.index(stop) + 1
    one = engine(ops, max_model_len=12)
    stopped, short, long = one.generate(
        [
            *requests(given, stop_token_ids=(stop,), max_new_tokens=6),
            *requests(given, max_new_tokens=1),
            *requests(given, max_new_tokens=100),
        ]
    )
    assert (stopped.outputs[0].token_ids, stopped.outputs[0].finish_reason) == (text[:end], "stop")
    assert (short.outputs[0].token_ids, short.outputs[0].finish_reason) == (text[:1], "length")
    assert (long.outputs[0].token_ids, long.outputs[0].finish_reason) == (text[:6], "length")
    settle(one)


def test_the_models_own_stop_tokens_count_unless_others_are_named(ops: Ops) -> None:
    one = engine(ops)
    handle = one.submit(Request([5]))
    assert next(iter(one._branches.sampled)).stop_token_ids == {2}
    one.abort(handle)


REFUSED: dict[str, dict[str, Any]] = {
    "0 to 96": {"prompt_token_ids": [3, 97]},
    "1 to 255": {"prompt_token_ids": []},
    "tokens in the cache": {"prompt_token_ids": [3] * 40, "max_new_tokens": 200},
    "1 to 8 sequences": {"prompt_token_ids": [3], "n": 9},
    "no more than beams": {"prompt_token_ids": [3], "n": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_can_never_run_is_refused_at_once(ops: Ops, message: str) -> None:
    one = engine(ops, num_blocks=16)
    with pytest.raises(RequestError, match=message):
        one.submit(Request(**REFUSED[message]))
    settle(one)


def test_events_come_in_order_and_say_what_the_outputs_say(ops: Ops) -> None:
    one = engine(ops)
    handles = [one.submit(request) for request in requests(prompts(), n=1)]
    seen: list[Event] = []
    while one.has_work:
        seen += one.step()
    for handle in handles:
        mine = [event for event in seen if event.handle is handle]
        assert [event.token_ids[0] for event in mine] == handle.outputs[0].token_ids
        assert [event.finish_reason for event in mine] == [""] * (NUM_TOKENS - 1) + ["length"]


def test_two_streams_drive_one_engine(ops: Ops) -> None:
    given = prompts((5, 30))
    one = engine(ops, max_num_batched_tokens=8)
    streams = [one.stream(one.submit(request)) for request in requests(given)]
    texts: list[list[int]] = [[], []]
    first = next(streams[1])
    texts[1] += first.token_ids
    for number, stream in enumerate(streams):
        for event in stream:
            texts[number] += event.token_ids
    assert texts == expected(given)
    assert list(streams[0]) == []


@pytest.mark.parametrize("seed", range(6))
def test_an_abort_at_any_moment_disturbs_nobody(ops: Ops, seed: int) -> None:
    rng = random.Random(seed)
    given = prompts()
    one = engine(ops, num_blocks=14, num_host_blocks=20, costs=rng.choice([SWAP, RECOMPUTE]))
    handles = [one.submit(request) for request in requests(given)]
    doomed = rng.sample(handles, 4)
    for handle in doomed:
        for _ in range(rng.randrange(8)):
            one.step()
        one.abort(handle)
        one.abort(handle)
        one.manager.check_integrity()
    events = [event for _ in range(400) if one.has_work for event in one.step()]
    wanted = expected(given)
    for handle, text in zip(handles, wanted, strict=True):
        output = handle.outputs[0]
        if output.finish_reason == "aborted":
            assert handle in doomed and output.token_ids == text[: len(output.token_ids)]
            assert not any(event.handle is handle and event.token_ids for event in events)
        else:
            assert output.token_ids == text
    settle(one)


def failing(one: Any, at: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the model's at-th step fail after half of its work."""
    calls = iter(range(10**6))
    forward = one.model.forward

    def broken(step: AttentionStep) -> torch.Tensor:
        logits: torch.Tensor = forward(step)
        if next(calls) == at:
            raise error
        return logits

    monkeypatch.setattr(one.model, "forward", broken)


@pytest.mark.parametrize("at", [0, 1, 4, 9])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_step_that_fails_ends_its_requests_and_no_others(
    ops: Ops, at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts()
    one = engine(ops, max_num_seqs=3, num_blocks=20)
    failing(one, at, monkeypatch, error)
    handles = [one.submit(request) for request in requests(given)]
    with pytest.raises(type(error)):
        while one.has_work:
            one.step()
    one.manager.check_integrity()
    failed = [handle for handle in handles if handle.error is error]
    assert 1 <= len(failed) <= 3
    one.generate([])
    while one.has_work:
        one.step()
    for handle, text in zip(handles, expected(given), strict=True):
        output = handle.outputs[0]
        assert (output.finish_reason == "error") == (handle in failed)
        assert output.token_ids == text[: len(output.token_ids)]
        assert handle in failed or len(output.token_ids) == NUM_TOKENS
    assert answers(one.generate(requests(given))) == expected(given)
    settle(one)


def test_a_swap_that_fails_leaves_nothing_wrong_in_the_cache(
    ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts()
    one = engine(ops, num_blocks=14, num_host_blocks=64, costs=SWAP)

    def broken(pairs: Any) -> Any:
        raise RuntimeError("bus")

    handles = [one.submit(request) for request in requests(given)]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="bus"):
        patch.setattr(one.executor.cache, "swap_in", broken)
        while one.has_work:
            one.step()
    assert any(handle.error for handle in handles)
    while one.has_work:
        one.step()
    assert answers(one.generate(requests(given))) == expected(given)
    settle(one)


def test_requests_leave_nothing_behind(ops: Ops) -> None:
    """2,000 requests, some aborted: memory is flat and no block is lost."""
    rng = random.Random(0)
    one = engine(ops, max_num_seqs=16, num_blocks=48)
    tracemalloc.start()
    sizes = []
    try:
        for number in range(2000):
            length = rng.randrange(1, 9)
            handle = one.submit(
                Request([rng.randrange(97) for _ in range(length)], max_new_tokens=2)
            )
            if number % 8 == 7:
                one.step()
                one.abort(handle)
            if number % 16 == 15:
                one.step()
            if number in (1000, 1999):
                while one.has_work:
                    one.step()
                del handle
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    settle(one)
    assert sizes[1] - sizes[0] < 50_000
    totals = one.totals
    assert totals.finished_requests + totals.aborted_requests == totals.requests == 2000


def test_metrics_are_gauges_rates_and_prometheus_text(ops: Ops) -> None:
    one = engine(ops, max_num_seqs=2)
    for request in requests(prompts()):
        one.submit(request)
    one.step()
    found = one.metrics()
    assert (found.waiting, found.running) == (len(LENGTHS) - 2, 2)
    while one.has_work:
        one.step()
    found = one.metrics()
    assert found.totals.generated_tokens == len(LENGTHS) * NUM_TOKENS
    assert found.tokens_per_s > 0 and 0 < found.tail_waste < 1
    text = found.prometheus()
    assert f"\npagegen_generated_tokens_total {len(LENGTHS) * NUM_TOKENS}\n" in text
    assert "pagegen_kv_used_blocks 0" in text and "pagegen_running 0" in text


@pytest.mark.parametrize(
    "options", [{"max_model_len": 300}, {"max_num_seqs": 0}, {"num_blocks": 1}, {"backend": "cuda"}]
)
def test_an_engine_that_cannot_be_is_refused(ops: Ops, options: dict[str, Any]) -> None:
    with pytest.raises(PagegenError):
        engine(ops, **options)


def test_speeds_and_memory_are_measured_where_nobody_says(ops: Ops) -> None:
    one = engine(ops, costs=None, num_host_blocks=4)
    assert one.scheduler.costs.host_bytes_per_s > 1e6
    assert one.scheduler.costs.prefill_tokens_per_s > 1
    assert engine(ops, num_blocks=None).manager.pool.num_blocks > 1000
