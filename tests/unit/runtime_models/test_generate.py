"""`pagegen generate`: text in a pipe, tables for a file, one error for a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.console import Screen
from pagegen.errors import ModelError, PagegenError, RequestError
from pagegen.generate import Setting, TextStream, generate
from pagegen.prompts import Prompt, read_prompts
from tests.tiny_models import REASON, tiny_model

ROOT = Path(__file__).parents[3]
SPEC = """\
name: small_fp32
arch: [sm_80]
heads: {query: 4, kv: 2, dim: 32}
dtype: {query: fp32}
cache: {block_size: 4}
attention: {mask: causal}
kernels: [decode, prefill, write_kv, merge_states, copy_blocks]
backends: [torch]
"""
WORDS = [f"w{number}" for number in range(97)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spec, and a model with a tokenizer of 97 words."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    (tmp_path / "small.yaml").write_text(SPEC)
    tiny_model(head_dim=32).save_pretrained(tmp_path / "model")
    table = {word: number for number, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "model")
    return tmp_path


def setting(folder: Path) -> Setting:
    return Setting(
        folder / "small.yaml", folder / "out", str(folder / "model"), device="cpu", num_blocks=64
    )


def test_one_prompt_is_streamed_as_plain_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # built, then found built
        generate(Screen(), setting(folder), Prompt("w5 w6", 6), None, has_prompt=True)
        words = capsys.readouterr().out.split()
        assert len(words) == 6 and set(words) <= set(WORDS)
    generate(Screen(as_json=True), setting(folder), Prompt("w5 w6", 6), None, has_prompt=True)
    document = json.loads(capsys.readouterr().out)
    assert document["text"].split() == words and document["finish_reason"] == "length"


def test_a_file_is_served_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"prompt": "w5 w6", "max_new_tokens": 4},
        {"prompt": "w7", "temperature": 0.7, "seed": 3, "n": 2},
    ]
    file = folder / "requests.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    generate(Screen(), setting(folder), Prompt("", 5), file, has_prompt=False)
    shown = capsys.readouterr().out
    assert "tokens_per_s" in shown and "tail_waste" in shown and "prefix_hit_rate" in shown
    generate(Screen(as_json=True), setting(folder), Prompt("", 5), file, has_prompt=False)
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["requests"] == 2
    assert [len(answers) for answers in document["answers"]] == [1, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "2: not JSON"),
        ("[]", "2: no prompt"),
        ('{"prompt": 3}', "2: no prompt"),
        ('{"prompt": "a", "max_tokens": 3}', "2: unknown key 'max_tokens'"),
        ('{"prompt": "a", "n": 1.5}', "2: n 1.5"),
        ('{"prompt": "a", "top_p": true}', "2: top_p True"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(RequestError, match=message):
        read_prompts(file, Prompt(""))


def test_a_character_is_held_back_until_it_is_whole() -> None:
    class Bytes:
        """A token a byte."""

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    text = "a\u00e9\u20ac!"
    stream = TextStream(Bytes())
    pieces = [stream.add((byte,)) for byte in text.encode()]
    assert pieces == ["a", "", "\u00e9", "", "", "\u20ac", "!"]
    assert stream.add((0xE2,)) == "" and stream.add((), last=True) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": "missing.yaml"}, "missing.yaml"),
        ({"model": ""}, "--model FOLDER"),
        ({"model": "nowhere"}, "no model 'nowhere'"),
        ({"backend": "cuda"}, "no backend 'cuda'"),
        ({"device": "cuda"}, "no GPU"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"max_new_tokens": 0}, "0 new tokens"),
    ],
)
def test_what_cannot_be_is_one_error(folder: Path, changes: dict[str, Any], message: str) -> None:
    fields = {name: value for name, value in changes.items() if hasattr(Prompt, name)}
    changes = {name: value for name, value in changes.items() if name not in fields}
    if "spec" in changes:
        changes["spec"] = folder / changes["spec"]
    if "device" in changes and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(PagegenError, match=message):
        generate(
            Screen(),
            replace(setting(folder), **changes),
            replace(Prompt("w5"), **fields),
            None,
            has_prompt=True,
        )


def test_without_the_extra_one_error_names_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'pagegen\[models\]'"):
        generate(Screen(), setting(folder), Prompt("w5"), None, has_prompt=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "--prompt TEXT, or --requests"), (("--requests", "missing.jsonl"), "missing.jsonl")],
)
def test_bad_input_ends_the_command_with_status_2(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "small.yaml").write_text(SPEC)
    result = subprocess.run(
        [sys.executable, "-m", "pagegen.cli", "generate", "small.yaml", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert message in result.stderr and "Traceback" not in result.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.yaml"]
