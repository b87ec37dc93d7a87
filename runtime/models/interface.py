"""The attention function that transformers calls in every layer, under the name "pagegen".

It knows no batch and no cache: whoever runs the model hands a receiver down through the model.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from pagegen.errors import ModelError

NAME = "pagegen"  # of the attention implementation
RECEIVER = "pagegen_receiver"  # the argument of model.forward that ends up here
EXTRAS = ("s_aux", "sinks", "position_bias", "alibi")  # arguments that no package's kernel has


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One layer's attention, as transformers asks for it.

    q [num_tokens, num_q_heads, head_dim]; k, v [num_tokens, num_kv_heads, dim]. sm_scale: None if
    the model leaves it to the default. window: visible keys, 0 for all; soft_cap: 0.0 for none.
    """

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sm_scale: float | None
    window: int
    soft_cap: float
    causal: bool
    extras: tuple[str, ...]  # what else bends the scores: sinks, biases, a mask


class Receiver(Protocol):
    """What a layer's attention is handed to."""

    def receive(self, call: LayerCall) -> torch.Tensor:
        """[num_tokens, num_q_heads, head_dim_v], as q is given."""
        ...


def transformers() -> ModuleType:
    """The library. Raises ModelError where it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(
            f"no transformers: {error}", remedy="pip install 'pagegen[models]'"
        ) from error


def register() -> None:
    """Make NAME an attention implementation of this process's transformers; again does no harm.

    No mask function goes with it: transformers then builds no mask at all. With one it would first
    look for packed sequences in the positions, which makes the host wait for the GPU.
    """
    transformers().AttentionInterface.register(NAME, attention_forward)


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,  # transformers' own convention: what a layer adds is not known here
) -> tuple[torch.Tensor, None]:
    """query [1, num_q_heads, num_tokens, head_dim], key and value likewise; returns the output
    [1, num_tokens, num_q_heads, head_dim_v] and no weights. Raises ModelError outside of a step."""
    receiver = kwargs.get(RECEIVER)
    if receiver is None:
        raise ModelError(
            f"a model with attention {NAME!r} was called without a batch",
            remedy="run it through PagedModel.forward, or model.set_attn_implementation('sdpa')",
        )
    out = receiver.receive(
        LayerCall(
            layer=module.layer_idx,
            q=query[0].transpose(0, 1),
            k=key[0].transpose(0, 1),
            v=value[0].transpose(0, 1),
            sm_scale=scaling,
            window=kwargs.get("sliding_window") or 0,
            soft_cap=kwargs.get("softcap") or 0.0,
            causal=bool(kwargs.get("is_causal", getattr(module, "is_causal", True))),
            extras=_extras(attention_mask, kwargs),
        )
    )
    return out.unsqueeze(0), None


def _extras(attention_mask: object, kwargs: dict[str, Any]) -> tuple[str, ...]:
    found = tuple(name for name in EXTRAS if kwargs.get(name) is not None)
    return found if attention_mask is None else ("attention_mask", *found)
