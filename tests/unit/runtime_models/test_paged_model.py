"""A transformers model through a package gives what transformers gives, however it is batched."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from pagegen.errors import ModelError
from pagegen.runtime.batch import Padding
from pagegen.runtime.loader import Ops
from pagegen.runtime.models.paged_model import PagedModel
from tests.tiny_models import generate, tiny_model, tiny_package
from tests.unit.runtime_models.serving import Running, Server

LENGTHS = (1, 3, 4, 5, 17, 30)
NUM_TOKENS = 12


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, 97) for _ in range(length)] for length in lengths]


def expected(model: Any) -> list[list[int]]:
    return [generate(model, prompt, NUM_TOKENS) for prompt in prompts()]


def appended(running: list[Running]) -> list[list[int]]:
    return [one.tokens[length:] for one, length in zip(running, LENGTHS, strict=True)]


def unfinished(running: list[Running]) -> list[Running]:
    pairs = zip(running, LENGTHS, strict=True)
    return [one for one, length in pairs if len(one.tokens) - length < NUM_TOKENS]


def decode_all(server: Server, running: list[Running], padding: Padding | None = None) -> None:
    while left := unfinished(running):
        server.append_greedy([(one, 1) for one in left], padding)


def test_ragged_prompts_in_one_prefill_then_decode(ops: Ops) -> None:
    model = tiny_model()
    wanted = expected(model)
    server = Server(model, ops)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    server.append_greedy([(one, len(one.tokens)) for one in running])
    decode_all(server, running)
    assert appended(running) == wanted


@pytest.mark.parametrize("chunk", [1, 3, 4, 7])
def test_prompts_in_chunks_beside_decoding_sequences(ops: Ops, chunk: int) -> None:
    model = tiny_model()
    wanted = expected(model)
    server = Server(model, ops)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    while left := unfinished(running):
        server.append_greedy([(one, min(chunk, len(one.tokens) - one.computed)) for one in left])
    assert appended(running) == wanted
    kinds = {(b.decode is not None, b.prefill is not None) for b in server.batches}
    assert (True, True) in kinds or chunk == 1


def test_rows_of_any_order_that_come_and_go(ops: Ops) -> None:
    model = tiny_model()
    wanted = expected(model)
    server = Server(model, ops)
    rng = random.Random(2)
    rows = (5, 0, 7, 2, 3, 6)
    running = [server.add(row, prompt) for row, prompt in zip(rows, prompts(), strict=True)]
    while left := unfinished(running):
        some = rng.sample(left, rng.randint(1, len(left)))
        counts = [rng.randint(1, len(one.tokens) - one.computed) for one in some]
        server.append_greedy(list(zip(some, counts, strict=True)))
    assert appended(running) == wanted


def test_padded_batches_change_nothing_and_write_nowhere(ops: Ops) -> None:
    model = tiny_model()
    wanted = expected(model)
    server = Server(model, ops)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    server.append_greedy([(one, len(one.tokens)) for one in running])
    untouched = server.free.copy()
    decode_all(server, running, Padding(num_seqs=8, max_seq_len=64))
    assert appended(running) == wanted
    never = [block for block in untouched if block in server.free]
    assert server.cache.pool[never].isnan().all()


def test_logits_are_those_of_transformers(ops: Ops) -> None:
    model = tiny_model()
    batches = prompts()
    with torch.inference_mode():
        wanted = torch.stack([model(torch.tensor([p])).logits[0, -1] for p in batches])
    server = Server(model, ops)
    work = [(server.add(row, prompt), len(prompt)) for row, prompt in enumerate(batches)]
    torch.testing.assert_close(server.step(work), wanted, rtol=1e-4, atol=1e-4)


def test_no_mask_is_built_and_no_cache_made(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    server = Server(model, ops)
    masking = pytest.importorskip("transformers.masking_utils")
    caches = pytest.importorskip("transformers.cache_utils")

    def never(*arguments: Any, **named: Any) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(masking, "find_packed_sequence_indices", never)
    monkeypatch.setattr(caches.DynamicCache, "__init__", never)
    server.append_greedy([(server.add(0, [3, 4, 5]), 3), (server.add(1, [6]), 1)])


OTHERS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "phi3": {},
    "granite": {"logits_scaling": 3.0},
    "olmo2": {},
    "gpt_neox": {},
    "cohere": {"logit_scale": 0.5},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "starcoder2": {"sliding_window": None},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 64},
}
ONE_KV_HEAD_FOR_EACH = ("gpt_neox", "gpt2", "opt")


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny_model(kind, **OTHERS[kind])
    kv_heads = 4 if kind in ONE_KV_HEAD_FOR_EACH else 2
    folder = tmp_path_factory.mktemp("packages")
    ops = tiny_package(folder, name=f"tiny_{kind}", num_kv_heads=kv_heads)
    wanted = expected(model)
    server = Server(model, ops)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    server.append_greedy([(one, len(one.tokens)) for one in running])
    decode_all(server, running)
    assert appended(running) == wanted


@pytest.mark.parametrize("window", [3, 9])
def test_a_sliding_window(window: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny_model("mistral", sliding_window=window)
    ops = tiny_package(tmp_path_factory.mktemp("packages"), name="tiny_window", window=window)
    wanted = expected(model)
    server = Server(model, ops)
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    server.append_greedy([(one, len(one.tokens)) for one in running])
    decode_all(server, running)
    assert appended(running) == wanted


def test_a_soft_cap_and_windows_longer_than_any_sequence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = tiny_model(
        "gemma2", sliding_window=128, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    )
    ops = tiny_package(tmp_path_factory.mktemp("packages"), name="tiny_cap", soft_cap=2.0)
    wanted = expected(model)
    with pytest.raises(ModelError, match="window 128 in layer 0, not 0"):
        PagedModel(model, ops)
    server = Server(model, ops, max_model_len=128)
    assert server.model.max_model_len == 128
    running = [server.add(row, prompt) for row, prompt in enumerate(prompts())]
    server.append_greedy([(one, len(one.tokens)) for one in running])
    decode_all(server, running)
    assert appended(running) == wanted


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"num_attention_heads": 8}, "query heads 8 in layer 0, not 4"),
    ("llama", {"num_key_value_heads": 4}, "KV heads 4 in layer 0, not 2"),
    ("llama", {"head_dim": 8}, "head dim 8 in layer 0, not 16"),
    ("mistral", {"sliding_window": 7}, "window 7 in layer 0, not 0"),
    ("gemma2", {"sliding_window": 512}, "soft cap 50.0 in layer 0, not 0.0"),
    ("gpt_oss", {"sliding_window": 512, "num_local_experts": 4}, "extra arguments s_aux"),
    ("mamba", {}, "attention of its own|mixes tokens|called for attention"),
    ("recurrent_gemma", {}, "attention of its own|mixes tokens|called for attention"),
    ("falcon_h1", {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}, "mixes tokens"),
    ("stablelm", {}, "hands no arguments down"),
    ("bloom", {"n_layer": 2, "n_head": 4}, "attention of its own|extra arguments"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4,
      "original_max_position_embeddings": 64}}, "dynamic rotary embedding"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED)
def test_a_model_that_differs_is_refused(
    ops: Ops, kind: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        PagedModel(tiny_model(kind, **changes), ops)


def test_another_dtype_is_refused(ops: Ops) -> None:
    with pytest.raises(ModelError, match=r"dtype torch.bfloat16 in layer 0, not torch.float32"):
        PagedModel(tiny_model().bfloat16(), ops)


@pytest.mark.parametrize("longest", [0, 257])
def test_a_length_the_model_was_not_made_for_is_refused(ops: Ops, longest: int) -> None:
    with pytest.raises(ModelError, match="1 to 256"):
        PagedModel(tiny_model(), ops, max_model_len=longest)


def test_a_call_without_a_batch_is_an_error(ops: Ops) -> None:
    model = tiny_model()
    PagedModel(model, ops)
    with pytest.raises(ModelError, match="without a batch"):
        model(torch.tensor([[1, 2]]))
