"""Request traces as token ids.

Mooncake (Qin et al., FAST '25) names each 512-token block of a prompt by an id: equal ids become
equal tokens. The Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024) has lengths
only: its tokens are all distinct, so nothing can be shared.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.errors import UsageError

HASH_BLOCK_TOKENS = 512
MAX_LENGTH = 1 << 16  # of an output, or of a prompt without ids
NAMES = ("azure_2023_conv", "azure_2023_code", "mooncake_conversation", "mooncake_synthetic")


@dataclass(frozen=True)
class Request:
    """One request. Lengths in tokens."""

    number: int
    num_prompt: int
    num_output: int
    hash_ids: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Of prompt and output."""
        return self.num_prompt + self.num_output

    def prompt(self) -> NDArray[np.int32]:
        """[num_prompt] token ids."""
        if not self.hash_ids:
            begin = self.number * MAX_LENGTH
            return np.arange(begin, begin + self.num_prompt, dtype=np.int32)
        begins = np.asarray(self.hash_ids, np.int32) * np.int32(HASH_BLOCK_TOKENS)
        tokens = np.add.outer(begins, np.arange(HASH_BLOCK_TOKENS, dtype=np.int32))
        flat: NDArray[np.int32] = tokens.reshape(-1)[: self.num_prompt]
        return flat

    def output(self) -> NDArray[np.int32]:
        """[num_output] token ids that no other request has."""
        begin = self.number * MAX_LENGTH
        return -1 - np.arange(begin, begin + self.num_output, dtype=np.int32)


def load_trace(folder: Path, name: str) -> tuple[Request, ...]:
    """A trace in order of arrival. Raises UsageError if it is not there or not as expected."""
    try:
        if name.startswith("mooncake"):
            lines = (folder / f"{name}.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            lengths = [(r["input_length"], r["output_length"], r["hash_ids"]) for r in rows]
        else:
            with (folder / f"{name}.csv").open(newline="") as file:
                table = list(csv.DictReader(file))
            lengths = [(int(r["ContextTokens"]), int(r["GeneratedTokens"]), ()) for r in table]
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"--traces {folder}: {name}: {type(error).__name__}: {error}") from error
    return tuple(
        Request(number, int(prompt), max(1, int(output)), tuple(ids))
        for number, (prompt, output, ids) in enumerate(lengths)
        if prompt > 0
    )


def longest(requests: Sequence[Request]) -> int:
    """The longest request in tokens."""
    return max(request.num_tokens for request in requests)
