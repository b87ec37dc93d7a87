"""From logits to tokens, for all rows of a step at once.

It knows no sequence: a row is its logits, its parameters and how many tokens it drew before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pagegen.errors import RequestError
from pagegen.runtime.sampling_params import SamplingParams
from pagegen.runtime.transfer import to_device

# SplitMix64's increment and multipliers (Steele, Lea, Flood: Fast splittable pseudorandom number
# generators, 2014). Its output function is a bijection that passes BigCrush on a counter.
INCREMENT, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1
UNIFORM_BITS = 52  # so that a product with a float64 sum stays below the sum


@dataclass(frozen=True)
class Sampled:
    """What a step chose, on the logits' device.

    token_ids [num_rows] int64; logprobs [num_rows] fp32, of the chosen tokens, before temperature
    and filters; top_ids and top_logprobs [num_rows, n], the likeliest tokens, likeliest first.
    All but token_ids are None unless some row asked for logprobs; n is the most that one asked for.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], steps: Sequence[int]) -> Sampled:
    """Choose a token for each row.

    logits [num_rows, vocab_size] of any float dtype; params of each row; steps: tokens the row's
    request drew before. A row's random number follows from its seed and step alone, so it is the
    same in any batch, and again after a preemption. Waits for nothing. Raises RequestError for a
    row that draws and has no seed.
    """
    if not params:
        empty = torch.empty(0, dtype=torch.int64, device=logits.device)
        return Sampled(empty)
    random = [i for i, one in enumerate(params) if not one.greedy]
    token_ids = logits.argmax(-1)
    plain = [i for i in random if not params[i].filtered]
    filtered = [i for i in random if params[i].filtered]
    for rows, draw in ((plain, _draw_plain), (filtered, _draw_filtered)):
        if rows:
            place = to_device(np.array(rows, np.int64), logits.device)
            some = logits if len(rows) == len(params) else logits.index_select(0, place)
            chosen = [params[i] for i in rows]
            numbers = uniform([_seed(one) for one in chosen], [steps[i] for i in rows])
            drawn = draw(some, chosen, to_device(numbers, logits.device))
            token_ids = token_ids.index_copy(0, place, drawn)
    wanted = [one.logprobs for one in params if one.logprobs is not None]
    return _with_logprobs(logits, token_ids, max(wanted)) if wanted else Sampled(token_ids)


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and ids of each row's `count` likeliest tokens, likeliest first.

    For beam search with n beams, 2 n of each beam are enough: at most n of them end a text.
    logits [num_rows, vocab_size]; returns fp32 and int64 [num_rows, count].
    """
    values, ids = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]), dim=-1)
    return values, ids


def uniform(seeds: Sequence[int], steps: Sequence[int]) -> Any:
    """Random numbers in [0, 1), float64: the steps-th of each seed, by SplitMix64.

    Each seed is scrambled first, or neighbouring seeds would give shifted copies of one sequence.
    """
    streams = _scramble(np.array([seed & MASK for seed in seeds], np.uint64))
    counters = np.asarray(steps, np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        bits = _scramble(streams + counters * np.uint64(INCREMENT))
    return (bits >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) / float(1 << UNIFORM_BITS)


def _seed(params: SamplingParams) -> int:
    if params.seed is None:
        raise RequestError("a row without a seed", remedy="give each request one of its own")
    return params.seed


def _scramble(bits: Any) -> Any:
    """SplitMix64's output function."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(INCREMENT)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(FIRST)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(SECOND)
    return bits ^ (bits >> np.uint64(31))


def _column(values: Sequence[float], like: torch.Tensor, dtype: Any = np.float32) -> torch.Tensor:
    """[num_rows, 1] on the device of `like`."""
    return to_device(np.array(values, dtype)[:, None], like.device)


def _weights(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Probabilities up to a factor, fp32: 1 for the likeliest token."""
    logits = logits.float()
    top = logits.amax(-1, keepdim=True)
    return ((logits - top) / _column([one.temperature for one in params], logits)).exp()


def _draw(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The first index whose running sum exceeds a share of the whole, [num_rows] int64.

    In float64: in a large vocabulary fp32 sums would swallow what is improbable.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    targets = sums[:, -1:] * numbers[:, None]
    found = torch.searchsorted(sums, targets, right=True).squeeze(1)
    return found.clamp(max=weights.shape[-1] - 1)


def _draw_plain(
    logits: torch.Tensor, params: Sequence[SamplingParams], numbers: torch.Tensor
) -> torch.Tensor:
    """From all tokens, which takes no sorting."""
    return _draw(_weights(logits, params), numbers)


def _draw_filtered(
    logits: torch.Tensor, params: Sequence[SamplingParams], numbers: torch.Tensor
) -> torch.Tensor:
    """From what the filters leave.

    Sorting finds the least weight that stays; the draw itself is in the vocabulary's order, so
    that how equal logits were sorted, which differs from batch to batch, does not matter.
    """
    vocab_size = logits.shape[-1]
    limits = [min(one.top_k or vocab_size, vocab_size) for one in params]
    widest = max(limits)
    weights = _weights(logits, params)
    ordered = weights.topk(widest, dim=-1).values
    rank = torch.arange(widest, device=logits.device)
    ordered = torch.where(rank < _column(limits, logits, np.int64), ordered, 0.0)
    sums = ordered.cumsum(-1, dtype=torch.float64)
    shares = _column([one.top_p for one in params], logits, np.float64)
    # A token stays if those before it do not reach the share yet, so that the first always does.
    stays = (sums - ordered < shares * sums[:, -1:]) & (ordered > 0.0)
    stays &= ordered >= _column([one.min_p for one in params], logits)
    least = torch.where(stays, ordered, 1.0).amin(-1, keepdim=True)
    return _draw(torch.where(weights >= least, weights, 0.0), numbers)


def _with_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, count: int) -> Sampled:
    logprobs = logits.float().log_softmax(-1)
    top_logprobs, top_ids = logprobs.topk(min(count, logits.shape[-1]), dim=-1)
    chosen = logprobs.gather(1, token_ids[:, None]).squeeze(1)
    return Sampled(token_ids, chosen, top_ids, top_logprobs)
