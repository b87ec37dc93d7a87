"""Prompts as a user writes them: on the command line, or in a file of one JSON object a line.

It knows no model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagegen.errors import RequestError
from pagegen.runtime.sampling_params import SamplingParams

KEYS = (
    "prompt", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "n", "priority",
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """What a prompt asks for, as the command line or a line of a file says it."""

    text: str
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    priority: int = 0

    def sampling(self) -> SamplingParams:
        """Raises RequestError for values out of range."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)


def read_prompts(path: Path, default: Prompt) -> list[Prompt]:
    """The lines of a JSONL file, with `default` for what they leave out. Raises RequestError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot be read: {error}", where=str(path)) from error
    prompts = [
        _prompt(line, default, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise RequestError("no request", allowed="one JSON object a line", where=str(path))
    return prompts


def _prompt(line: str, default: Prompt, where: str) -> Prompt:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise RequestError(f"not JSON: {error}", where=where) from error
    if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
        raise RequestError(
            "no prompt",
            allowed='an object such as {"prompt": "Hi", "max_new_tokens": 9}',
            where=where,
        )
    values: dict[str, Any] = {name: getattr(default, name) for name in KEYS if name != "prompt"}
    for name, value in given.items():
        if name not in KEYS:
            raise RequestError(f"unknown key {name!r}", allowed=", ".join(KEYS), where=where)
        wanted = (int, float) if name in ("temperature", "top_p", "min_p") else (int,)
        good = isinstance(value, wanted) and not isinstance(value, bool)
        if not good and name != "prompt" and not (name == "seed" and value is None):
            raise RequestError(f"{name} {value!r}", allowed="a number", where=where)
        values["text" if name == "prompt" else name] = value
    prompt = Prompt(**values)
    try:
        prompt.sampling()
    except RequestError as error:
        raise RequestError(error.asked, allowed=error.allowed, where=where) from error
    return prompt
