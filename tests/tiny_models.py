"""Random models of a few thousand weights, and packages that fit them, for tests of the runtime.

It needs transformers; a test that imports it is skipped where that is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.runtime.loader import Ops, load
from tests.host_package import write_package
from tests.specimens import specimen

REASON = "transformers is not installed: pip install '.[models]'"
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}


def tiny_model(kind: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """A random model in fp32, on the CPU; `kind` is transformers' model_type."""
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # larger than models start with, so that argmax has no near ties
                weight.normal_(0.0, 0.2)
    return model.eval()


def tiny_package(folder: Path, **changes: Any) -> Ops:
    """A package for tiny_model(), in fp32 and plain PyTorch; `changes` are fields of its spec."""
    fields: dict[str, Any] = {
        "name": "tiny_model",
        "head_dim": 16,
        "head_dim_v": 16,
        "dtype_query": "fp32",
        "dtype_kv": "fp32",
        "dtype_out": "fp32",
        "backends": ("torch",),
    }
    return load(write_package(folder, specimen(**{**fields, **changes})))


def generate(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The tokens that transformers' own generate appends, greedily, one prompt at a time."""
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None  # no token ends a random model's text
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
    return [int(token) for token in out[0, len(prompt) :]]
