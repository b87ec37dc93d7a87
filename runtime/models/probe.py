"""What a model asks of attention, seen by running two tokens through it, not read off its config.

It knows no cache: it stands where the cache will be, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pagegen.dtypes import dtype
from pagegen.errors import ModelError
from pagegen.manifest import SpecFacts
from pagegen.runtime.models.interface import RECEIVER, LayerCall

ROPE_BY_LENGTH = ("dynamic", "longrope")  # frequencies change with the longest sequence of a batch


class Probe:
    """Receives the layers of one run and keeps what they ask; every output is 0."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []

    def receive(self, call: LayerCall) -> torch.Tensor:
        """Zeros as the layer's output."""
        self.calls.append(call)
        return call.q.new_zeros(*call.q.shape[:2], call.v.shape[-1])


def probe(model: Any) -> tuple[LayerCall, ...]:
    """The layers' calls, in order. Raises ModelError if tokens meet outside of attention, as in a
    recurrent or convolving model: there a batch of several sequences would mix them."""
    results = []
    for first in (0, 1):
        receiver = Probe()
        ids = torch.tensor([[first, 2]], device=model.device)
        positions = torch.zeros_like(ids)
        arguments: dict[str, Any] = {RECEIVER: receiver}
        try:
            with torch.inference_mode():
                output = model(input_ids=ids, position_ids=positions, use_cache=False, **arguments)
        except ModelError as error:
            raise ModelError(
                f"{type(model).__name__} hands no arguments down to its attention",
                allowed="models whose layers pass **kwargs on",
                remedy="run it with transformers' own generate",
            ) from error
        results.append(output.logits[0, 1].float())
    # A sum of experts may round otherwise when another token takes other experts.
    slack = 1e-2 * float(results[0].abs().max())
    if not torch.allclose(results[0], results[1], rtol=0.0, atol=slack):
        raise ModelError(
            f"{type(model).__name__} mixes tokens outside of attention",
            allowed="models whose tokens meet in attention only",
            remedy="run it with transformers' own generate",
        )
    return tuple(receiver.calls)


def check(
    model: Any, calls: tuple[LayerCall, ...], facts: SpecFacts, name: str, max_model_len: int
) -> None:
    """Compare a model with the package `name`. Raises ModelError that lists every difference.

    A window of max_model_len tokens or more is none.
    """
    wrong = [
        *_config_differences(model.config.get_text_config(), calls, max_model_len),
        *_layer_differences(calls, facts, max_model_len),
    ]
    if wrong:
        raise ModelError(
            f"{type(model).__name__} is not what {name} computes: {'; '.join(wrong)}",
            remedy="build a package from a spec with the model's numbers, or load the model in the "
            "package's dtype",
        )


def _config_differences(
    config: Any, calls: tuple[LayerCall, ...], max_model_len: int
) -> Iterator[str]:
    """What no call shows."""
    layers = sorted(call.layer for call in calls)
    if layers != list(range(config.num_hidden_layers)):
        yield (
            f"layers {layers} of {config.num_hidden_layers} called for attention, where each must "
            "once"
        )
    kinds = getattr(config, "layer_types", None) or ()
    for call in calls:
        kind = kinds[call.layer] if call.layer < len(kinds) else ""
        if kind == "sliding_attention" and not call.window:
            yield f"layer {call.layer} slides, by a mask that pagegen cannot see"
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and chunk < max_model_len:
        yield f"attention in chunks of {chunk} tokens, and max_model_len is {max_model_len}"
    for rope in _rope_parameters(config):
        trained = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if rope.get("rope_type") in ROPE_BY_LENGTH and max_model_len > trained:
            yield (
                f"{rope['rope_type']} rotary embedding, which past {trained} tokens depends on the "
                f"longest sequence of a batch, and max_model_len is {max_model_len}"
            )


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """One dict, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in found:
        return [found]
    return [rope for rope in found.values() if isinstance(rope, dict)]


def _layer_differences(
    calls: tuple[LayerCall, ...], facts: SpecFacts, max_model_len: int
) -> Iterator[str]:
    """What the calls ask for, against the spec; each difference once, with its first layer."""

    def within(window: int) -> int:
        return window if window < max_model_len else 0

    wanted: dict[str, object] = {
        "query heads": facts.num_q_heads,
        "KV heads": facts.num_kv_heads,
        "head dim": facts.head_dim,
        "value head dim": facts.head_dim_v,
        "dtype": f"torch.{dtype(facts.dtype_query).torch}",
        "output dtype": f"torch.{dtype(facts.dtype_out).torch}",
        "window": within(facts.window),
        "soft cap": facts.soft_cap,
        "causal": facts.causal,
        "extra arguments": "none",
    }
    seen: set[tuple[str, object]] = set()
    for call in calls:
        given: dict[str, object] = {
            "query heads": call.q.shape[1],
            "KV heads": call.k.shape[1],
            "head dim": call.q.shape[2],
            "value head dim": call.v.shape[2],
            "dtype": str(call.k.dtype),
            "output dtype": str(call.q.dtype),
            "window": within(call.window),
            "soft cap": call.soft_cap,
            "causal": call.causal,
            "extra arguments": ", ".join(call.extras) or "none",
        }
        for what, value in given.items():
            if value != wanted[what] and (what, value) not in seen:
                seen.add((what, value))
                yield f"{what} {value} in layer {call.layer}, not {wanted[what]}"
