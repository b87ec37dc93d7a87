"""Every argument a generated package refuses: what it must be, what it is, what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.host_package import Call, import_package, make_call
from tests.specimens import specimen

BF16 = torch.bfloat16


def refusal(ops: ModuleType, function: str, *arguments: Any, **options: Any) -> str:
    """The message of the ArgumentError that a call raises."""
    with pytest.raises(ops.ArgumentError) as caught:
        getattr(ops, function)(*arguments, **options)
    error: Any = caught.value
    assert issubclass(ops.ArgumentError, ValueError)
    assert str(error).startswith(f"{function}: {error.argument} ")
    return str(error)


# ---- what is refused: (changed argument, the message's words)

BAD_INPUTS: tuple[tuple[str, Any, str], ...] = (
    (
        "q",
        lambda t: t.float(),
        "must be torch.bfloat16, but it is torch.float32\n  to fix: q.to(torch.bfloat16)",
    ),
    ("q", lambda t: t.tolist(), "must be a torch.Tensor, but it is a list"),
    ("q", lambda t: t.flatten(1), "must have shape [num_seqs, 4, 32], but it has [3, 128]"),
    ("q", lambda t: t[:, :2], "must have shape [num_seqs, 4, 32], but it has [3, 2, 32]"),
    (
        "q",
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        "must be contiguous in its last dimension",
    ),
    (
        "q",
        lambda t: torch.zeros(3, 4, 36, dtype=BF16)[..., :32],
        "axis 1 steps 36 elements = 72 bytes",
    ),
    ("k_cache", lambda t: t.half(), "must be torch.bfloat16, but it is torch.float16"),
    (
        "k_cache",
        lambda t: t.transpose(1, 2),
        "to fix: k_cache.transpose(1, 2): this package was built for layout NHD",
    ),
    ("k_cache", lambda t: t[:, :3], "must have shape [num_blocks, 4, 2, 32]"),
    ("v_cache", lambda t: t[:7], "with num_blocks = 8, as in k_cache, but it has [7, 4, 2, 32]"),
    (
        "v_cache",
        lambda t: torch.zeros(8, 4, 2, 33, dtype=BF16)[..., :32],
        "axis 1 steps 66 elements = 132 bytes",
    ),
    ("block_table", lambda t: t.long(), "must be torch.int32, but it is torch.int64"),
    ("block_table", lambda t: t[:2], "with num_seqs = 3, as in q, but it has [2, 4]"),
    ("block_table", lambda t: t.t().contiguous().t(), "must be contiguous in its last dimension"),
    ("block_table", lambda t: t[0], "must have shape [num_seqs, max_blocks], but it has [4]"),
    (
        "seq_lens",
        lambda t: t.long(),
        "must be torch.int32, but it is torch.int64\n  to fix: seq_lens.to(torch.int32)",
    ),
    ("seq_lens", lambda t: t.repeat_interleave(2)[::2], "must be contiguous in its last dimension"),
    (
        "seq_lens",
        lambda t: t.to("meta"),
        'must be on cpu like q, but it is on meta\n  to fix: seq_lens.to("cpu")',
    ),
)


@pytest.mark.parametrize(("name", "change", "words"), BAD_INPUTS)
def test_a_bad_input_of_decode_is_named(
    ops: ModuleType, call: Call, name: str, change: Any, words: str
) -> None:
    bad = replace(call, **{name: change(getattr(call, name))})
    message = refusal(ops, "decode", *bad.decode)
    assert message.startswith(f"decode: {name} ") and words in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": torch.zeros(3, 4, 32)}, "out must be torch.bfloat16"),
        (
            {"out": torch.zeros(2, 4, 32, dtype=BF16)},
            "out must have shape [num_seqs, 4, 32] with num_seqs = 3",
        ),
        (
            {"out": torch.zeros(1, 4, 32, dtype=BF16).expand(3, 4, 32)},
            "out is written and must not overlap itself",
        ),
        (
            {"out": (torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(3, 4))},
            "out must be a tensor without return_lse",
        ),
        (
            {"out": (torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(4, 3).t()), "return_lse": True},
            "lse must be contiguous",
        ),
        ({"sm_scale": float("nan")}, "sm_scale must be positive and finite, but it is nan"),
        ({"sm_scale": 0.0}, "sm_scale must be positive and finite, but it is 0.0"),
        ({"sm_scale": -1.0}, "sm_scale must be positive and finite, but it is -1.0"),
        (
            {"sm_scale": torch.tensor(0.5)},
            "sm_scale must be a float, but it is a Tensor\n  to fix: a Python number",
        ),
        ({"sm_scale": "1"}, "sm_scale must be a float, but it is a str"),
        ({"k_scale": 0.5}, "k_scale must be None or 1.0: the cache holds unscaled torch.bfloat16"),
        ({"v_scale": torch.ones(1)}, "v_scale must be None or 1.0"),
        ({"num_splits": 0}, "num_splits must be None or 1 to 256, but it is 0"),
        ({"num_splits": 257}, "num_splits must be None or 1 to 256, but it is 257"),
        ({"num_splits": 2.0}, "num_splits must be None or 1 to 256, but it is 2.0"),
        ({"workspace": [0]}, "workspace must be a torch.Tensor, but it is a list"),
        (
            {"workspace": torch.zeros(64, dtype=torch.int32)},
            "workspace must be contiguous uint8 or float32",
        ),
        (
            {"workspace": torch.zeros(64, device="meta")},
            "workspace must be on cpu like q, but it is on meta",
        ),
        ({"backend": "vulkan"}, "backend must be one of cuda, triton, torch, not 'vulkan'"),
        ({"variant": "fastest"}, "variant must be one of default, checked in torch, not 'fastest'"),
    ],
)
def test_a_bad_option_of_decode_is_named(
    ops: ModuleType, call: Call, options: dict[str, Any], words: str
) -> None:
    assert refusal(ops, "decode", *call.decode, **options).startswith(f"decode: {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cu_seqlens_q": torch.zeros(4, dtype=torch.int64)}, "cu_seqlens_q must be torch.int32"),
        (
            {"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)},
            "cu_seqlens_q must have shape [num_seqs + 1] with num_seqs + 1 = 4",
        ),
        (
            {"seq_lens": torch.zeros(2, dtype=torch.int32)},
            "block_table must have shape [num_seqs, max_blocks] with num_seqs = 2, as in seq_lens",
        ),
        ({"q": torch.zeros(3, 4, 31, dtype=BF16)}, "q must have shape [num_tokens, 4, 32]"),
    ],
)
def test_a_bad_input_of_prefill_is_named(
    ops: ModuleType, call: Call, change: dict[str, Any], words: str
) -> None:
    message = refusal(ops, "prefill", *replace(call, **change).prefill)
    assert message.startswith(f"prefill: {words}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_seqlen_q": torch.tensor(3)}, "max_seqlen_q must be None or an int of at least 0"),
        ({"max_seqlen_q": -1}, "max_seqlen_q must be None or an int of at least 0, but it is -1"),
        ({"num_splits": 2}, "num_splits must be None or 1, but it is 2"),
        ({"k_scale": 2.0}, "k_scale must be None or 1.0"),
    ],
)
def test_a_bad_option_of_prefill_is_named(
    ops: ModuleType, call: Call, options: dict[str, Any], words: str
) -> None:
    assert refusal(ops, "prefill", *call.prefill, **options).startswith(f"prefill: {words}")


def test_write_kv_names_what_is_wrong(ops: ModuleType, call: Call) -> None:
    k = torch.zeros(3, 2, 32, dtype=BF16)
    slots = torch.tensor([0, -1, 5])

    def says(*arguments: Any, **options: Any) -> str:
        return refusal(ops, "write_kv", *arguments, **options)

    caches = call.k_cache, call.v_cache
    assert "slot_mapping must be torch.int64" in says(k, k, *caches, slots.int())
    assert "k must have shape [num_tokens, 2, 32] with num_tokens = 3" in says(
        k[:2], k, *caches, slots
    )
    assert "v must be torch.bfloat16" in says(k, k.half(), *caches, slots)
    assert "k_scale must be None" in says(k, k, *caches, slots, k_scale=0.5)
    expanded = call.k_cache[:1].expand(8, 4, 2, 32)
    assert "k_cache is written and must not overlap" in says(k, k, expanded, call.v_cache, slots)


def test_padding_rows_of_k_past_slot_mapping_are_left_out(ops: ModuleType, call: Call) -> None:
    k = torch.ones(5, 2, 32, dtype=BF16)
    ops.write_kv(k, k, call.k_cache, call.v_cache, torch.tensor([0, 9]))
    assert bool((call.k_cache.view(-1, 2, 32)[[0, 9]] == 1).all())


def test_merge_states_and_copy_blocks_name_what_is_wrong(ops: ModuleType, call: Call) -> None:
    out, lse = torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(3, 4)
    assert "lse_b must have shape [num_tokens, 4] with num_tokens = 3, as in out_a" in refusal(
        ops, "merge_states", out, lse, out, lse[:2]
    )
    assert "out_b must be torch.bfloat16" in refusal(
        ops, "merge_states", out, lse, out.float(), lse
    )
    assert "lse is written" in refusal(
        ops, "merge_states", out, lse, out, lse, out=(None, lse[:1].expand(3, 4))
    )
    pairs = torch.tensor([[0, 1]])
    assert "src_to_dst must be torch.int64" in refusal(
        ops, "copy_blocks", call.k_cache, call.v_cache, pairs.int()
    )
    assert "src_to_dst must have shape [num_pairs, 2], but it has [2]" in refusal(
        ops, "copy_blocks", call.k_cache, call.v_cache, pairs[0]
    )
    gaps = torch.zeros(2, 3, dtype=torch.int64)[:, :2]
    assert "src_to_dst must be contiguous" in refusal(
        ops, "copy_blocks", call.k_cache, call.v_cache, gaps
    )


# ---- layouts and lookups


def test_heads_first_caches_are_checked_against_the_layout(
    packages: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    ops = import_package(packages / "heads_first", monkeypatch)
    assert "this package was built for layout HND" in refusal(ops, "decode", *call.decode)
    k, v = call.k_cache.transpose(1, 2), call.v_cache.transpose(1, 2)
    assert ops.decode(call.q, k, v, call.block_table, call.seq_lens).shape == (3, 4, 32)


def test_csr_takes_a_pair(packages: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    ops = import_package(packages / "by_rows", monkeypatch)
    message = refusal(ops, "decode", *call.decode)
    assert "block_table must be the pair (kv_indptr, kv_indices), but it is a Tensor" in message
    indptr, indices = make_call(specimen(lookup="csr")).block_table
    good = replace(call, block_table=(indptr, indices))
    assert ops.decode(*good.decode).shape == (3, 4, 32)
    short = replace(call, block_table=(indptr[:3], indices))
    assert "kv_indptr must have shape [num_seqs + 1]" in refusal(ops, "decode", *short.decode)
    wide = replace(call, block_table=(indptr, indices.long()))
    assert "kv_indices must be torch.int32" in refusal(ops, "prefill", *wide.prefill)


def test_strided_pools_give_what_their_copies_give(ops: ModuleType, call: Call) -> None:
    pool = torch.full((8, 2, 4, 2, 32), float("nan"), dtype=BF16)
    pool[:, 0], pool[:, 1] = call.k_cache, call.v_cache
    packed = torch.cat((call.k_cache, call.v_cache), -1)
    wide = torch.full((3, 12), -1, dtype=torch.int32)
    wide[:, 3:7] = call.block_table
    qkv = torch.cat((call.q, call.q), 1)
    expected = ops.decode(*call.decode)
    for change in (
        {"k_cache": pool[:, 0], "v_cache": pool[:, 1]},
        {"k_cache": packed[..., :32], "v_cache": packed[..., 32:]},
        {"block_table": wide[:, 3:7]},
        {"q": qkv[:, :4]},
    ):
        assert torch.equal(ops.decode(*replace(call, **change).decode), expected)
