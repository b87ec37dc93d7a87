"""How a request's tokens are chosen.

It knows no tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagegen.errors import RequestError

MAX_LOGPROBS = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """temperature: 0 takes the likeliest token, and the filters do not matter then.

    Filters in this order, each on what the one before left: top_k likeliest tokens, 0 for all;
    the fewest tokens whose probabilities reach top_p; tokens at least min_p times as probable as
    the likeliest. Tokens as probable as the last that stays, stay. seed: equal seeds give equal
    random numbers, whatever else is in the batch; None: whoever takes the request gives it one.
    logprobs: how many of the likeliest tokens' log-probabilities to return beside the chosen one's;
    None for none at all. Raises RequestError for values out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        rules = (
            ("temperature", 0.0 <= self.temperature < math.inf, "at least 0, and finite"),
            ("top_k", self.top_k >= 0, "at least 0; 0 for all tokens"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0, at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
                f"None, or 0 to {MAX_LOGPROBS}",
            ),
        )
        for name, good, allowed in rules:
            if not good:
                raise RequestError(f"{name} {getattr(self, name)}", allowed=allowed)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        """Whether some tokens are left out before one is drawn."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
