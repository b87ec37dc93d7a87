"""What bounds a step and a sequence.

It knows no sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagegen.errors import RequestError


@dataclass(frozen=True)
class Limits:
    """Of a step and of a sequence. Raises RequestError for limits under which nothing runs.

    watermark: share of all blocks that stay available when a job is admitted, so that those that
    run do not preempt it at once. ageing_steps: after so many, who waits counts as one priority
    better. max_chunk: tokens of one prompt in one step; 0: all that the step has room for.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    watermark: float = 0.01
    ageing_steps: int = 100
    max_chunk: int = 0

    def __post_init__(self) -> None:
        sizes = (self.max_num_batched_tokens, self.max_num_seqs, self.ageing_steps)
        if min(sizes) < 1 or self.max_model_len < 2 or self.max_chunk < 0:
            raise RequestError(f"{self}", allowed="sizes of at least 1, max_model_len 2 or more")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise RequestError(
                f"{self.max_num_seqs} sequences in {self.max_num_batched_tokens} tokens",
                allowed="a token for each sequence",
            )
        if not 0.0 <= self.watermark < 1.0:
            raise RequestError(f"a watermark of {self.watermark}", allowed="0 up to 1")
