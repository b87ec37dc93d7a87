"""A Hugging Face causal language model whose attention is a generated package's.

It knows no scheduler: a batch and a cache in, logits out.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from pagegen.errors import ModelError
from pagegen.runtime.attention import AttentionStep
from pagegen.runtime.loader import manifest_of
from pagegen.runtime.models.interface import NAME, RECEIVER, LayerCall, register
from pagegen.runtime.models.probe import check, probe


@dataclass(frozen=True, slots=True)
class StepReceiver:
    """Hands a layer to the step's attention."""

    step: AttentionStep

    def receive(self, call: LayerCall) -> torch.Tensor:
        """[num_tokens, num_q_heads, head_dim_v]."""
        return self.step.attend(call.layer, call.q, call.k, call.v, call.sm_scale)


class PagedModel:
    """A model that keeps no cache of its own: its layers' keys and values go to the package's."""

    def __init__(self, model: Any, ops: Any, *, max_model_len: int | None = None) -> None:
        """Take over a transformers model for causal language modelling, and check it.

        The model's attention implementation is changed to "pagegen". ops: a loaded package.
        max_model_len: tokens of the longest sequence that will run; default: what the model was
        made for. Two tokens are run to see what every layer asks for. Raises ModelError when that
        is not what the package computes, and lists the differences.
        """
        register()
        model.eval()
        model.set_attn_implementation(NAME)
        config = model.config.get_text_config()
        if config._attn_implementation != NAME:
            raise ModelError(
                f"{type(model).__name__} has attention of its own",
                allowed="models that follow transformers' AttentionInterface",
            )
        facts = manifest_of(ops)
        limit = getattr(config, "max_position_embeddings", None)
        longest = limit if max_model_len is None else max_model_len
        if longest is None or longest < 1 or (limit is not None and longest > limit):
            raise ModelError(
                f"max_model_len {max_model_len}",
                allowed=f"1 to {limit}" if limit else "a number: the model names none",
            )
        calls = probe(model)
        check(model, calls, facts.spec, facts.name, longest)
        self.model = model
        self.num_layers = len(calls)
        self.max_model_len: int = longest
        self.vocab_size: int = config.vocab_size
        self.device: torch.device = model.device
        self.eos_token_ids = _eos_token_ids(model)
        self._keeps_some_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, step: AttentionStep) -> torch.Tensor:
        """Run a step, PagedAttention.begin's result; returns logits [num_logits, vocab_size].

        Launches on the current stream and waits for nothing; may be captured in a graph when the
        step's batch is padded.
        """
        batch = step.batch
        arguments: dict[str, Any] = {RECEIVER: StepReceiver(step)}
        if self._keeps_some_logits:
            arguments["logits_to_keep"] = batch.logits_indices
        logits: torch.Tensor = self.model(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            **arguments,
        ).logits[0]
        return logits if self._keeps_some_logits else logits[batch.logits_indices]


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    """Tokens that end a text, as the model's own generation config says."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
