"""How an engine's answers are chosen: seeds, several answers, log-probabilities, beams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagegen.errors import RequestError
from pagegen.runtime.loader import Ops
from pagegen.runtime.request import BeamParams, Handle, Request
from pagegen.runtime.sampling_params import SamplingParams
from tests.tiny_models import tiny_model
from tests.unit.runtime_models.engines import (
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

TIGHT: dict[str, Any] = {"num_blocks": 24, "num_host_blocks": 64, "costs": SWAP}
HOT = SamplingParams(temperature=1.5, seed=7)
FILTERED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=8)


def texts(handle: Handle) -> list[list[int]]:
    return [output.token_ids for output in handle.outputs]


@pytest.mark.parametrize("sampling", [HOT, FILTERED], ids=["plain", "filtered"])
@pytest.mark.parametrize("options", [{}, TIGHT, {"max_num_batched_tokens": 10}])
def test_a_seed_gives_the_same_answers_alone_and_in_a_batch(
    ops: Ops, sampling: SamplingParams, options: dict[str, Any]
) -> None:
    prompt = prompts((9,))[0]
    mine = Request(prompt, sampling, max_new_tokens=NUM_TOKENS, stop_token_ids=(), n=3)
    (alone,) = engine(ops).generate([mine])
    assert len({tuple(text) for text in texts(alone)}) == 3
    one = engine(ops, **options)
    others = requests(prompts(), sampling=SamplingParams(seed=1))
    among = one.generate([*others[:4], mine, *others[4:]])[4]
    assert texts(among) == texts(alone)
    settle(one)


def test_the_first_of_several_answers_is_the_only_one_of_one(ops: Ops) -> None:
    given = requests(prompts((9, 14)), sampling=HOT)
    single = answers(engine(ops).generate(given))
    several = engine(ops).generate(requests(prompts((9, 14)), sampling=HOT, n=4))
    assert answers(several) == single


def test_requests_without_a_seed_get_their_own(ops: Ops) -> None:
    given = requests(prompts((9,)) * 2, sampling=SamplingParams(temperature=1.5))
    first, again = (answers(engine(ops, seed=3).generate(given)) for _ in range(2))
    assert first == again and first[0] != first[1]
    assert answers(engine(ops, seed=4).generate(given)) != first


@pytest.mark.parametrize("length", [3, 4, 8, 9])
def test_answers_share_their_prompt_and_copy_only_its_last_block(ops: Ops, length: int) -> None:
    one = engine(ops)
    handle = one.submit(requests(prompts((length,)), sampling=HOT, n=4)[0])
    one.step()
    assert len(one.scheduler.running) == 4
    assert [len(text) for text in texts(handle)] == [1] * 4
    assert one.metrics().gauges.used_blocks == -(-length // 4)
    while one.has_work:
        one.step()
    assert one.manager.counters.copied_blocks == (3 if length % 4 else 0)
    settle(one)


def test_greedy_answers_are_equal_and_one_token_is_enough(ops: Ops) -> None:
    given = prompts((6, 8))
    one = engine(ops)
    for handle, text in zip(one.generate(requests(given, n=3)), expected(given), strict=True):
        assert texts(handle) == [text] * 3
    for handle in one.generate(requests(given, sampling=HOT, n=3, max_new_tokens=1)):
        assert [output.finish_reason for output in handle.outputs] == ["length"] * 3
    settle(one)


def test_an_abort_ends_all_answers(ops: Ops) -> None:
    one = engine(ops)
    for steps in range(4):
        for beam in (None, BeamParams(3)):
            handle = one.submit(requests(prompts((9,)), n=3, beam=beam)[0])
            for _ in range(steps):
                one.step()
            one.abort(handle)
            assert [output.finish_reason for output in handle.outputs] == ["aborted"] * 3
            settle(one)


def test_logprobs_are_those_of_the_model(ops: Ops) -> None:
    given = prompts((9,))
    asked = SamplingParams(temperature=0.0, logprobs=3)
    other = requests(prompts((5,)), sampling=SamplingParams(seed=1, logprobs=5))
    handle = engine(ops).generate([*requests(given, sampling=asked), *other])[0]
    model = tiny_model()
    output = handle.outputs[0]
    whole = torch.tensor([given[0] + output.token_ids])
    with torch.inference_mode():
        wanted = model(whole).logits[0, len(given[0]) - 1 : -1].log_softmax(-1)
    for row, token, found in zip(wanted, output.token_ids, output.logprobs, strict=True):
        assert found.chosen == pytest.approx(float(row[token]), abs=1e-4)
        assert [token_id for token_id, _ in found.top] == row.topk(3).indices.tolist()


def beams_of_transformers(
    prompt: list[int], beam: BeamParams, stop: list[int]
) -> list[tuple[list[int], float]]:
    """Its num_beams best texts and scores; padding cut off."""
    model = tiny_model()
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = stop or None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            num_beams=beam.num_beams,
            num_return_sequences=beam.num_beams,
            length_penalty=beam.length_penalty,
            early_stopping=beam.early_stopping,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for row, score in zip(out.sequences, out.sequences_scores.tolist(), strict=True):
        text = row[len(prompt) :].tolist()
        ends = [i for i, token in enumerate(text) if token in stop]
        found.append((text[: ends[0] + 1] if ends else text, score))
    return found


@pytest.mark.parametrize("stop", [[], [2], [5, 9]], ids=["", "a stop", "two stops"])
@pytest.mark.parametrize(
    "beam",
    [BeamParams(2), BeamParams(3, 0.0), BeamParams(4, 2.0, early_stopping=True)],
    ids=str,
)
def test_beams_are_those_of_transformers(ops: Ops, beam: BeamParams, stop: list[int]) -> None:
    given = prompts((1, 5, 8, 17))
    one = engine(ops, num_blocks=80, max_num_batched_tokens=20)
    handles = one.generate(requests(given, beam=beam, n=beam.num_beams, stop_token_ids=stop))
    for prompt, handle in zip(given, handles, strict=True):
        wanted = beams_of_transformers(prompt, beam, stop)
        assert texts(handle) == [text for text, _ in wanted]
        scores = [output.score for output in handle.outputs]
        assert scores == pytest.approx([score for _, score in wanted], abs=1e-4)
    settle(one)


@pytest.mark.parametrize("costs", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
@pytest.mark.parametrize("num_blocks", [19, 20, 22, 26])
@pytest.mark.parametrize("ageing_steps", [1, 3, 100])
def test_beams_that_press_each_other_out_of_memory_get_through(
    ops: Ops, costs: Any, num_blocks: int, ageing_steps: int
) -> None:
    """Each family needs most of the pool, and waits for those of its own that lost their place."""
    given = prompts((9, 10, 11, 13))
    beam = BeamParams(4)
    options: dict[str, Any] = {"num_host_blocks": 100, "costs": costs, "max_num_seqs": 12}
    calm = engine(ops, num_blocks=200).generate(requests(given, beam=beam, n=4))
    one = engine(ops, num_blocks=num_blocks, watermark=0.0, **options)
    one.scheduler.limits = replace(one.scheduler.limits, ageing_steps=ageing_steps)
    mixed = requests(given, beam=beam, n=4)
    others = requests(prompts())
    handles = [one.submit(request) for pair in zip(mixed, others, strict=False) for request in pair]
    for _ in range(3000):
        if not one.has_work:
            break
        one.step()
        one.manager.check_integrity()
    assert [texts(handle) for handle in handles[::2]] == [texts(handle) for handle in calm]
    assert answers(handles[1::2]) == expected(prompts())[: len(mixed)]
    counters = one.manager.counters
    assert counters.preemptions + counters.swapped_out_blocks > 0
    settle(one)


def test_one_beam_is_greedy(ops: Ops) -> None:
    given = prompts((5, 9))
    assert answers(engine(ops).generate(requests(given, beam=BeamParams(1)))) == expected(given)


def test_beams_that_can_never_be_there_together_are_refused(ops: Ops) -> None:
    one = engine(ops, num_blocks=12)
    with pytest.raises(RequestError, match="4 sequences at once"):
        one.submit(requests(prompts((9,)), beam=BeamParams(4))[0])
    with pytest.raises(RequestError, match="logprobs of a beam search"):
        Request([3], SamplingParams(logprobs=1), beam=BeamParams(2))
    settle(one)
