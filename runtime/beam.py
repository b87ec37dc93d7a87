"""Beam search: which sequences go on, and which texts are the best that ended.

It knows no block and no model: log-probabilities in, choices out.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from pagegen.runtime.request import BeamParams


@dataclass(frozen=True, slots=True)
class Candidate:
    """A beam's next token. total: log-probability of all that was generated, it included."""

    beam: int
    token: int
    total: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A text that ended."""

    token_ids: tuple[int, ...]
    score: float
    stopped: bool  # by a stop token, not by its length


class BeamSearch:
    """One prompt's beams, numbered; at first there is one.

    `advance` takes every beam's likeliest next tokens and says which beams go on with what: the
    best `num_beams` that do not end. A text that ends counts only if it is among the best
    num_beams of the step: the others are there so that enough beams are left to go on.
    """

    def __init__(
        self, params: BeamParams, stop_token_ids: frozenset[int], max_new_tokens: int
    ) -> None:
        self.params = params
        self.finished: list[Hypothesis] = []  # the best num_beams, best first
        self._stop = stop_token_ids
        self._max_new_tokens = max_new_tokens
        self._texts: list[tuple[int, ...]] = [()]
        self._totals = [0.0]

    @property
    def num_candidates(self) -> int:
        """Next tokens wanted of each beam: at most so many end it that num_beams are left."""
        return max(2, 1 + len(self._stop)) * self.params.num_beams

    def advance(
        self, logprobs: Items[Items[float]], token_ids: Items[Items[int]]
    ) -> list[Candidate]:
        """Candidates that go on, best first; [] when the search is over.

        logprobs, token_ids: the num_candidates likeliest next tokens of each beam. The i-th that
        goes on is beam i from now on.
        """
        found = [
            Candidate(beam, token, self._totals[beam] + logprob)
            for beam, row in enumerate(zip(logprobs, token_ids, strict=True))
            for logprob, token in zip(*row, strict=True)
        ]
        found.sort(key=lambda one: -one.total)
        best = found[: self.num_candidates]
        length = len(self._texts[0]) + 1
        at_end = length >= self._max_new_tokens
        for one in best[: self.params.num_beams]:
            if at_end or one.token in self._stop:
                self._finish(one, length)
        going_on = [one for one in best if not at_end and one.token not in self._stop]
        going_on = going_on[: self.params.num_beams]
        if not going_on or self._is_over(going_on[0].total, length):
            return []
        self._texts = [(*self._texts[one.beam], one.token) for one in going_on]
        self._totals = [one.total for one in going_on]
        return going_on

    def _finish(self, one: Candidate, length: int) -> None:
        score: float = one.total / length**self.params.length_penalty
        text = (*self._texts[one.beam], one.token)
        self.finished.append(Hypothesis(text, score, one.token in self._stop))
        self.finished.sort(key=lambda ended: -ended.score)
        del self.finished[self.params.num_beams :]

    def _is_over(self, best_total: float, length: int) -> bool:
        """Whether what runs is not expected to beat what ended."""
        if len(self.finished) < self.params.num_beams:
            return False
        if self.params.early_stopping:
            return True
        hoped: float = best_total / length**self.params.length_penalty
        return hoped <= self.finished[-1].score
