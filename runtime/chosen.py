"""From a step's logits to plain numbers on the host: here, and only here, a step waits.

It knows no job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagegen.errors import RequestError
from pagegen.runtime.branches import Picks
from pagegen.runtime.request import TokenLogprobs
from pagegen.runtime.sampler import likeliest, sample
from pagegen.runtime.transfer import to_device


@dataclass(frozen=True)
class Chosen:
    """tokens: one for each of a Picks' rows; candidates: log-probabilities and ids of the
    likeliest next tokens, for each of its beam_rows."""

    tokens: list[int]
    candidates: list[tuple[list[float], list[int]]]
    of_tokens: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]

    def logprobs(self, place: int, count: int) -> TokenLogprobs:
        """Of the place-th token, with the `count` likeliest."""
        ids, values = self.top_ids[place][:count], self.top_logprobs[place][:count]
        return TokenLogprobs(self.of_tokens[place], tuple(zip(ids, values, strict=True)))


def choose(logits: torch.Tensor, num_rows: int, picks: Picks) -> Chosen:
    """Sample what is wanted of logits [num_rows, vocab_size], and fetch it.

    Raises RequestError for logits of another number of rows.
    """
    if logits.shape[0] != num_rows:
        raise RequestError(
            f"logits of {logits.shape[0]} sequences", allowed=f"{num_rows}, as the step says"
        )
    candidates: list[tuple[list[float], list[int]]] = []
    if picks.beam_rows:
        most = max(picks.num_candidates)
        values, ids = likeliest(_rows(logits, picks.beam_rows), most)
        rows = zip(values.tolist(), ids.tolist(), picks.num_candidates, strict=True)
        candidates = [(row[:count], tokens[:count]) for row, tokens, count in rows]
    if not picks.rows:
        return Chosen([], candidates, [], [], [])
    sampled = sample(_rows(logits, picks.rows), picks.params, picks.draws)
    tokens = sampled.token_ids.tolist()
    if sampled.logprobs is None or sampled.top_ids is None or sampled.top_logprobs is None:
        return Chosen(tokens, candidates, [], [], [])
    return Chosen(
        tokens,
        candidates,
        sampled.logprobs.tolist(),
        sampled.top_ids.tolist(),
        sampled.top_logprobs.tolist(),
    )


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if len(rows) == logits.shape[0] and rows == list(range(len(rows))):
        return logits
    return logits.index_select(0, to_device(np.array(rows, np.int64), logits.device))
