"""The manual of the spec: every key, its default, and what becomes of it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pagegen.archs import ARCHS
from pagegen.plan import BACKENDS, KERNELS
from pagegen.spec import Spec, load, parse
from tests.spec_text import spec_text

SPECS = Path(__file__).parents[2] / "specs"


def made(**changes: str | None) -> Spec:
    return parse(spec_text(**changes), "some/folder/a.yaml")


def test_the_shortest_spec_names_heads_query_type_and_block_size() -> None:
    spec = made()
    assert (spec.name, spec.file_name) == ("llama3_8b", "a.yaml")
    assert (spec.num_q_heads, spec.num_kv_heads, spec.group) == (32, 8, 4)
    assert (spec.head_dim, spec.head_dim_v) == (128, 128)
    assert (spec.dtype_query, spec.dtype_kv, spec.dtype_out) == ("bf16", "bf16", "bf16")
    assert (spec.block_size, spec.layout, spec.lookup) == (16, "NHD", "table")
    assert (spec.causal, spec.window, spec.soft_cap) == (True, 0, 0.0)
    assert (spec.kernels, spec.backends) == (KERNELS, BACKENDS)


def test_every_key_can_be_written() -> None:
    text = """
name: "quoted_name"
arch: sm_90a
heads: {query: 16, kv: 16, dim_qk: 192, dim_v: 128}
dtype: {query: fp16, kv: fp16, out: fp16}
cache: {block_size: 1, layout: HND, lookup: csr}
attention: {mask: causal, window: 128, soft_cap: 50, sinks: false, alibi: false}
kernels: [decode, prefill]
backends: [triton]
"""
    assert parse(text, "a.yaml") == Spec(
        name="quoted_name",
        archs=("sm_90a",),
        num_q_heads=16,
        num_kv_heads=16,
        head_dim=192,
        head_dim_v=128,
        dtype_query="fp16",
        dtype_kv="fp16",
        dtype_out="fp16",
        block_size=1,
        layout="HND",
        lookup="csr",
        causal=True,
        window=128,
        soft_cap=50.0,
        kernels=("decode", "prefill"),
        backends=("triton",),
        file_name="a.yaml",
        digest=parse(text, "b.yaml").digest,
    )


@pytest.mark.parametrize("arch", [row.name for row in ARCHS])
def test_every_target_can_be_named(arch: str) -> None:
    backends = "[triton, torch]" if arch.startswith("gfx") else "[cuda, triton, torch]"
    assert made(arch=arch, backends=backends).archs == (arch,)


def test_one_target_needs_no_brackets() -> None:
    assert made(arch="sm_80") == made(arch="[sm_80]")


def test_lists_are_sets_in_one_order() -> None:
    spec = made(arch="[gfx942, sm_90a, sm_80]", kernels="[prefill, decode]")
    assert spec.archs == ("sm_80", "sm_90a", "gfx942")
    assert spec.kernels == ("decode", "prefill")


def test_null_is_the_one_way_to_turn_a_window_or_cap_off() -> None:
    assert made(attention="{window: null, soft_cap: null}") == made()


@pytest.mark.parametrize(
    ("text", "value"), [("50", 50.0), ("50.0", 50.0), ("0.5", 0.5), ("1.0e-3", 0.001)]
)
def test_a_soft_cap_is_any_plain_number(text: str, value: float) -> None:
    assert made(attention=f"{{soft_cap: {text}}}").soft_cap == value


def test_a_full_mask() -> None:
    assert not made(attention="{mask: full}").causal


@pytest.mark.parametrize(
    ("heads", "group"),
    [("12, kv: 12", 1), ("71, kv: 1", 71), ("28, kv: 4", 7), ("10, kv: 2", 5), ("128, kv: 1", 128)],
)
def test_groups_of_any_size_to_128(heads: str, group: int) -> None:
    assert made(heads=f"{{query: {heads}, dim: 64}}").group == group


@pytest.mark.parametrize("block_size", [1, 17, 96, 4096])
def test_a_block_has_any_number_of_tokens(block_size: int) -> None:
    assert made(cache=f"{{block_size: {block_size}}}").block_size == block_size


@pytest.mark.parametrize("dim", [32, 40, 80, 112, 256])
def test_head_dims_are_multiples_of_8(dim: int) -> None:
    assert made(heads=f"{{query: 4, kv: 4, dim: {dim}}}").head_dim == dim


def test_fp32_is_for_triton_and_torch() -> None:
    assert made(dtype="{query: fp32}", backends="[triton, torch]").dtype_out == "fp32"


# One change for each field; a new field of Spec fails the test below until it is listed here.
DIFFERENT: dict[str, dict[str, str]] = {
    "name": {"name": "other"},
    "archs": {"arch": "[sm_90a]"},
    "num_q_heads": {"heads": "{query: 16, kv: 8, dim: 128}"},
    "num_kv_heads": {"heads": "{query: 32, kv: 4, dim: 128}"},
    "head_dim": {"heads": "{query: 32, kv: 8, dim_qk: 64, dim_v: 128}"},
    "head_dim_v": {"heads": "{query: 32, kv: 8, dim_qk: 128, dim_v: 64}"},
    "block_size": {"cache": "{block_size: 17}"},
    "layout": {"cache": "{block_size: 16, layout: HND}"},
    "lookup": {"cache": "{block_size: 16, lookup: csr}"},
    "causal": {"attention": "{mask: full}"},
    "window": {"attention": "{window: 1}"},
    "soft_cap": {"attention": "{soft_cap: 30.0}"},
    "kernels": {"kernels": "[decode]"},
    "backends": {"backends": "[cuda, torch]"},
}
TOGETHER = {"dtype_query", "dtype_kv", "dtype_out"}  # equal to each other in this version
NO_MEANING = {"file_name", "digest"}


def test_every_field_has_a_pair_of_specs() -> None:
    assert set(DIFFERENT) | TOGETHER | NO_MEANING == {field.name for field in fields(Spec)}


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_spec_that_differs_in_one_field_has_another_digest(field: str) -> None:
    one, two = made(), made(**DIFFERENT[field])
    differ = {row.name for row in fields(Spec) if getattr(one, row.name) != getattr(two, row.name)}
    assert differ == {field, "digest"}


def test_another_dtype_has_another_digest() -> None:
    assert made().digest != made(dtype="{query: fp16}").digest


def test_comments_order_spelling_and_file_name_do_not_change_the_digest() -> None:
    lines = spec_text(attention="{soft_cap: 50}", dtype="{query: bf16, out: bf16}").splitlines()
    text = "# a comment\n" + "\n\n".join(reversed(lines)) + "\n"
    other = parse(text.replace("soft_cap: 50}", "soft_cap: 50.0}  # cap"), "elsewhere/b.yaml")
    spec = made(attention="{soft_cap: 50}")
    assert other.digest == spec.digest
    assert re.fullmatch("[0-9a-f]{64}", spec.digest)


def test_load_reads_utf8_with_or_without_a_mark_and_any_line_ending(tmp_path: Path) -> None:
    text = "# größer als nötig\n" + spec_text()
    path = tmp_path / "a.yaml"
    specs = []
    for data in (
        text.encode(),
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").encode(),
    ):
        path.write_bytes(data)
        specs.append(load(path))
    assert specs == [parse(text, "a.yaml")] * 3


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_a_shipped_spec_is_short_commented_and_named_as_its_file(path: Path) -> None:
    spec = load(path)
    text = path.read_text()
    assert spec.name == path.stem
    assert 15 <= len(text.splitlines()) <= 30
    assert text.startswith("# ")
    assert f"pagegen build specs/{path.name}" in text
