"""Sampling: each filter against a plain reference, and what a seed promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagegen.errors import RequestError
from pagegen.runtime.sampler import likeliest, sample, uniform
from pagegen.runtime.sampling_params import SamplingParams


def logits_of(rows: int, vocab_size: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def kept(row: torch.Tensor, params: SamplingParams) -> dict[int, float]:
    """Each token that may be drawn, with its probability: one filter after the other."""
    scaled = [value / params.temperature for value in row.tolist()]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if params.top_k:
        order = order[: params.top_k]
    weights = {i: math.exp(scaled[i] - scaled[order[0]]) for i in order}
    total = sum(weights.values())
    inside, share = [], 0.0
    for i in order:
        if share >= params.top_p:
            break
        inside.append(i)
        share += weights[i] / total
    weights = {i: weights[i] for i in inside if weights[i] >= params.min_p}
    total = sum(weights.values())
    return {i: weight / total for i, weight in weights.items()}


def test_temperature_0_takes_the_likeliest() -> None:
    logits = logits_of(8)
    chosen = sample(logits, [SamplingParams(temperature=0.0)] * 8, [0] * 8)
    assert chosen.token_ids.equal(logits.argmax(-1))
    assert chosen.logprobs is None


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.6},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.05, "temperature": 1.5},
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_draws_follow_the_filtered_probabilities(fields: dict[str, Any]) -> None:
    """Chi squared over many draws of one row; fixed seeds, so it passes always or never."""
    count = 4000
    row = logits_of(1, seed=3)
    params = [SamplingParams(seed=seed, **fields) for seed in range(count)]
    drawn = sample(row.expand(count, -1), params, [0] * count).token_ids
    wanted = kept(row[0], params[0])
    counts = torch.bincount(drawn, minlength=50).tolist()
    assert {i for i, n in enumerate(counts) if n} <= set(wanted)
    common = [i for i, p in wanted.items() if p * count >= 5]
    statistic = sum((counts[i] - wanted[i] * count) ** 2 / (wanted[i] * count) for i in common)
    assert statistic < len(common) + 4 * math.sqrt(2 * len(common)) + 1


def test_the_steps_of_one_seed_are_independent_draws() -> None:
    count = 4000
    row = logits_of(1, 4, seed=4)
    drawn = sample(row.expand(count, -1), [SamplingParams(seed=11)] * count, range(count)).token_ids
    wanted = kept(row[0], SamplingParams())
    pairs = torch.bincount(drawn[:-1] * 4 + drawn[1:], minlength=16).tolist()
    expected = [wanted[i // 4] * wanted[i % 4] * (count - 1) for i in range(16)]
    statistic = sum((n - e) ** 2 / e for n, e in zip(pairs, expected, strict=True))
    assert statistic < 15 + 4 * math.sqrt(30)


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = logits_of(12).bfloat16()  # with equal logits in a row
    fields: list[dict[str, Any]] = [
        {"top_k": 3}, {}, {"temperature": 0.0}, {"top_p": 0.7}, {"top_k": 40, "min_p": 0.1}, {},
    ]  # fmt: skip
    params = [SamplingParams(seed=i, **fields[i % 6]) for i in range(12)]
    steps = [5 * i for i in range(12)]
    together = sample(logits, params, steps).token_ids.tolist()
    alone = [
        int(sample(logits[i : i + 1], [params[i]], [steps[i]]).token_ids[0]) for i in range(12)
    ]
    order = [7, 1, 10, 4]
    some = sample(logits[order], [params[i] for i in order], [steps[i] for i in order])
    assert together == alone
    assert some.token_ids.tolist() == [alone[i] for i in order]


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((300, 20), -math.inf)
    logits[:, 7] = -1e4
    logits[:, 11] = -1e4
    fields: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.9}]
    params = [SamplingParams(seed=i, **fields[i % 3]) for i in range(300)]
    drawn = sample(logits, params, [0] * 300).token_ids
    assert set(drawn.tolist()) == {7, 11}


def test_logprobs_are_of_the_model_not_of_the_filters() -> None:
    logits = logits_of(3)
    params = [
        SamplingParams(temperature=0.0, logprobs=2),
        SamplingParams(temperature=0.1, top_k=2, seed=1),
        SamplingParams(seed=2, logprobs=5),
    ]
    chosen = sample(logits, params, [0, 0, 0])
    wanted = logits.log_softmax(-1)
    assert chosen.logprobs is not None and chosen.top_ids is not None
    assert chosen.top_logprobs is not None
    torch.testing.assert_close(chosen.logprobs, wanted.gather(1, chosen.token_ids[:, None])[:, 0])
    assert chosen.top_ids.shape == (3, 5)
    torch.testing.assert_close(chosen.top_logprobs, wanted.gather(1, chosen.top_ids))
    assert chosen.top_ids[0, 0] == chosen.token_ids[0]


def test_the_likeliest_continuations_of_beams() -> None:
    logits = logits_of(3, 10)
    values, ids = likeliest(logits, 4)
    assert ids.tolist() == [sorted(range(10), key=lambda i: -row[i])[:4] for row in logits.tolist()]
    torch.testing.assert_close(values, logits.log_softmax(-1).gather(1, ids))
    assert likeliest(logits, 99)[0].shape == (3, 10)


def test_uniform_numbers_fill_the_interval() -> None:
    numbers = uniform([0] * 10000, range(10000))
    assert 0.0 <= numbers.min() < 0.001 and 0.999 < numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.01
    neighbours = uniform(range(10000), [0] * 10000)
    assert abs((neighbours[:-1] * neighbours[1:]).mean() - 0.25) < 0.01
    assert uniform([-1, 2**64 - 1], [3, 3]).tolist()[0] == uniform([2**64 - 1], [3])[0]


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, 9), [], []).token_ids.shape == (0,)


def test_a_row_that_draws_needs_a_seed() -> None:
    with pytest.raises(RequestError, match="without a seed"):
        sample(logits_of(1), [SamplingParams()], [0])


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_k": -1},
        {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 2.0}, {"logprobs": -1},
        {"logprobs": 65},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(fields))):
        SamplingParams(**fields)
