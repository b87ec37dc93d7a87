"""Spec files as text, for tests: a good one, and the same with some keys changed."""

from __future__ import annotations

GOOD = {
    "name": "llama3_8b",
    "arch": "[sm_90a, sm_80]",
    "heads": "{query: 32, kv: 8, dim: 128}",
    "dtype": "{query: bf16}",
    "cache": "{block_size: 16}",
}


def spec_text(**changes: str | None) -> str:
    """The good spec, one key a line, with `changes` in YAML; None leaves a key out."""
    entries = {**GOOD, **changes}
    return "".join(f"{key}: {value}\n" for key, value in entries.items() if value is not None)
