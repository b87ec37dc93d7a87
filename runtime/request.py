"""What a user asks of an engine, and what comes back.

It knows no scheduler and no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal

from pagegen.errors import RequestError
from pagegen.runtime.sampling_params import SamplingParams
from pagegen.runtime.sequence import Namespace

# stop: a stop token came, and is the last one; length: as many tokens as asked for, or as fit
Reason = Literal["", "stop", "length", "aborted", "error"]
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class BeamParams:
    """Beam search over `num_beams` sequences, the best `n` of which are the answers.

    A text's score is the sum of its tokens' log-probabilities over their number to the power of
    length_penalty. early_stopping: end as soon as num_beams texts have ended; else when the best
    that runs, at its present length, does not beat the worst that ended.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise RequestError(f"{self.num_beams} beams", allowed="at least 1")


@dataclass(frozen=True)
class Request:
    """A prompt and how to go on from it.

    stop_token_ids: None for those of the model. n: answers, each with random numbers of its own;
    with `beam`, the n best. priority: lower comes first. namespace: with whom it shares prefixes.
    Raises RequestError for counts out of range.
    """

    prompt_token_ids: Items[int]
    sampling: SamplingParams = GREEDY
    max_new_tokens: int = 128
    stop_token_ids: Items[int] | None = None
    n: int = 1
    beam: BeamParams | None = None
    priority: int = 0
    namespace: Namespace = field(default_factory=Namespace)
    name: str = ""

    def __post_init__(self) -> None:
        most = self.beam.num_beams if self.beam else self.n
        if not 1 <= self.n <= most:
            raise RequestError(f"{self.n} answers", allowed="at least 1, no more than beams")
        if self.beam and self.sampling.logprobs is not None:
            raise RequestError("logprobs of a beam search", remedy="read each answer's score")

    @property
    def num_sequences(self) -> int:
        """Sequences that it becomes at most."""
        return self.beam.num_beams if self.beam else self.n


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of a chosen token, and (token id, log-probability) of the likeliest, likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Output:
    """One answer. `score`: of a beam search; `logprobs`: one entry a token, if asked for."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    score: float | None = None
    finish_reason: Reason = ""


@dataclass(frozen=True, slots=True)
class Event:
    """News of one answer: tokens that came, and why it ended, if it did."""

    handle: Handle
    index: int
    token_ids: tuple[int, ...]
    finish_reason: Reason


@dataclass(eq=False)
class Handle:
    """A request on its way. `error`: what went wrong, when the finish reason is "error"."""

    name: str
    request: Request
    outputs: tuple[Output, ...]
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether every answer has ended."""
        return all(output.finish_reason for output in self.outputs)
