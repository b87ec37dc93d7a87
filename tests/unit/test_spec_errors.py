"""What a spec may not say: each mistake with its place, what is allowed, and what to do.

The rows are (changed keys of a good spec, field, parts of the message).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pagegen.errors import PagegenError, SpecError, TargetError
from pagegen.spec import MAX_FILE_BYTES, load, parse
from tests.spec_text import spec_text

TARGETS = "sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a, gfx90a, gfx942, gfx950"


def refused(text: str) -> PagegenError:
    with pytest.raises(PagegenError) as caught:
        parse(text, "specs/a.yaml")
    return caught.value


def check(changes: dict[str, str | None], *parts: str) -> PagegenError:
    error = refused(spec_text(**changes))
    for part in parts:
        assert part in str(error)
    return error


def test_a_message_has_place_field_value_caret_allowed_and_remedy() -> None:
    assert str(check({"cache": "{block_size: 016}"})) == (
        "specs/a.yaml:5:21: cache.block_size: 016 is an octal number to some YAML readers"
        " (016 is 14)\n"
        "    cache: {block_size: 016}\n"
        "                        ^\n"
        "  allowed: an integer from 1 to 4096\n"
        "  to fix: write a decimal number without leading zeros"
    )


# Targets: one spelling each.


@pytest.mark.parametrize(
    ("arch", "near"),
    [
        ("sm_999", "sm_90"),
        ("sm_120", "sm_120a"),
        ('"9.0"', "sm_90"),
        ('"90"', "sm_90"),
        ("90a", "sm_90a"),
        ("SM_90A", "sm_90a"),
        ("sm90", "sm_90"),
        ("sm_75", ""),
        ("compute_90", ""),
        ("hopper", ""),
    ],
)
def test_an_unknown_target_lists_the_known_ones(arch: str, near: str) -> None:
    hint = f"did you mean {near}?" if near else ""
    error = check({"arch": f"[sm_80, {arch}]"}, "arch[1]: ", "not a known target", TARGETS, hint)
    assert isinstance(error, TargetError)
    assert isinstance(check({"arch": arch}, "2:7: arch: ", TARGETS), TargetError)


@pytest.mark.parametrize(
    ("arch", "parts"),
    [
        ("9.0", ("arch: 9.0 is a number", TARGETS, "did you mean sm_90?")),
        ("90", ("arch: 90 is an integer", TARGETS, "did you mean sm_90?")),
        ("12.10", ("arch: 12.10 is a number", TARGETS)),
        ("[]", ("arch: an empty list", TARGETS)),
        ("[sm_80, sm_80]", ("2:15: arch[1]: 'sm_80' stands here again", "delete it")),
        ("[[sm_80]]", ("arch[0]: this is a list", TARGETS)),
        ("[sm_80, 90]", ("arch[1]: 90 is an integer", TARGETS)),
        ("gfx942", ("arch: the backend cuda cannot run on gfx942", "backends: [triton, torch]")),
        ('"-arch=sm_90 --foo"', ("not a known target", TARGETS)),
    ],
)
def test_what_is_no_list_of_targets(arch: str, parts: tuple[str, ...]) -> None:
    check({"arch": arch}, *parts)


# Names: text that becomes a folder, a package and a symbol.


NO_NAMES = """Llama 3b _a a-b a.b ../a /etc/x a/b --out a;b "a\\n" "a\\"b" naïve '{{x}}' $(ls)"""


@pytest.mark.parametrize("name", [*NO_NAMES.split(), "a b", "a" * 49, "|\n  a\n  b", '""'])
def test_a_name_is_a_short_identifier(name: str) -> None:
    check({"name": name}, "1:7: name: ", "is not a name", "lower-case letters, digits")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("class", "is a Python keyword"), ("lambda", "is a Python keyword")]
    + [(name, "would hide") for name in ("torch", "triton", "cupy", "numpy", "json", "print")],
)
def test_a_name_hides_nothing(name: str, reason: str) -> None:
    check({"name": name}, f"name: {name} {reason}", f"to fix: {name}_kernels")


# Types on the target, and what is not built yet.


@pytest.mark.parametrize("kv", ["fp8_e4m3", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_quantised_kv_is_not_built_yet(kv: str, arch: str) -> None:
    changes: dict[str, str | None] = {"dtype": f"{{query: bf16, kv: {kv}}}", "arch": arch}
    check(changes, f"dtype.kv: {kv} beside bf16 queries is not built yet", "allowed: bf16")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"dtype": "{query: fp8_e4m3}"}, ("dtype.query: fp8_e4m3", "allowed: bf16, fp16, fp32")),
        ({"dtype": "{query: bfloat16}"}, ("dtype.query: bfloat16", "did you mean bf16?")),
        ({"dtype": "{query: bf16, kv: fp16}"}, ("dtype.kv: fp16 beside bf16", "allowed: bf16")),
        ({"dtype": "{query: bf16, out: fp32}"}, ("dtype.out: fp32 beside bf16", "allowed: bf16")),
        (
            {"dtype": "{query: fp32}"},
            ("dtype.query: the backend cuda has no fp32", "add backends: [triton, torch]"),
        ),
        ({"dtype": "{query: fp32}", "backends": "[cuda]"}, ("fp32", "[triton, torch]")),
        ({"dtype": "{query: fp32}", "backends": "[torch, cuda]"}, ("add backends: [torch]",)),
        ({"dtype": "{query: bf16, kv_scale: head}"}, ("kv_scale: quantised KV is not built yet",)),
        ({"mla": "{latent: 512, rope: 64}"}, ("mla: latent (MLA) heads are not built yet",)),
        ({"heads": "{mla: {latent: 512}}"}, ("heads.mla: latent (MLA) heads are not built yet",)),
        ({"attention": "{sinks: true}"}, ("attention.sinks: not built yet", "allowed: false")),
        ({"attention": "{alibi: true}"}, ("attention.alibi: not built yet", "allowed: false")),
    ],
)
def test_what_this_version_cannot_make(
    changes: dict[str, str | None], parts: tuple[str, ...]
) -> None:
    check(changes, *parts)


# Impossible heads, windows and caps.

COUNT = "allowed: an integer from 1 to 1024"
HEAD_DIM = "allowed: an integer from 32 to 256, a multiple of 8"
BLOCK_SIZE = "allowed: an integer from 1 to 4096"
WINDOW = "allowed: an integer from 1 to 1073741824 or null"
SOFT_CAP = "allowed: a number from 0.001 to 1000000 or null"


@pytest.mark.parametrize(
    ("heads", "parts"),
    [
        ("query: 10, kv: 4, dim: 64", ("heads.query: 10 query heads", "a multiple of heads.kv")),
        ("query: 4, kv: 8, dim: 64", ("heads.query: 4 query heads", "a multiple of heads.kv")),
        ("query: 129, kv: 1, dim: 64", ("129 query heads per KV head", "at most 128")),
        ("query: 4, kv: 0, dim: 64", ("heads.kv: 0 is not allowed", COUNT)),
        ("query: 0, kv: 1, dim: 64", ("heads.query: 0 is not allowed", COUNT)),
        ("query: -4, kv: -2, dim: 64", ("heads.query: -4 is not allowed", COUNT)),
        ("query: 2048, kv: 1024, dim: 64", ("heads.query: 2048 is not allowed", COUNT)),
        ("query: 4, kv: 2, dim: 0", ("heads.dim: 0 is not allowed", HEAD_DIM)),
        ("query: 4, kv: 2, dim: 8", ("heads.dim: 8 is not allowed", HEAD_DIM)),
        ("query: 4, kv: 2, dim: 36", ("heads.dim: 36 is not allowed", HEAD_DIM)),
        ("query: 4, kv: 2, dim: 264", ("heads.dim: 264 is not allowed", HEAD_DIM)),
        ("query: 4, kv: 2", ("heads: the head size", "either dim, or both dim_qk and dim_v")),
        ("query: 4, kv: 2, dim_qk: 64", ("heads: the head size",)),
        ("query: 4, kv: 2, dim: 64, dim_v: 64", ("heads: the head size",)),
        ("query: 4, kv: 2, dim: 64, dim_v: 64, dim_qk: 64", ("heads: the head size",)),
        ("query: 4, dim: 64", ("3:1: the key 'heads.kv' is missing", COUNT, "add kv to heads")),
    ],
)
def test_impossible_heads(heads: str, parts: tuple[str, ...]) -> None:
    check({"heads": f"{{{heads}}}"}, *parts)


@pytest.mark.parametrize("size", ["0", "-16", "4097"])
def test_impossible_block_sizes(size: str) -> None:
    check({"cache": f"{{block_size: {size}}}"}, f"block_size: {size} is not allowed", BLOCK_SIZE)


@pytest.mark.parametrize(
    ("attention", "parts"),
    [
        ("window: 0", ("attention.window: 0 is not allowed", WINDOW, "write null to turn it off")),
        ("window: -1", ("attention.window: -1 is not allowed", WINDOW)),
        ("window: none", ("attention.window: none is a string", WINDOW)),
        ("mask: full, window: 8", ("a window of 8 keys with mask full", "to fix: set window")),
        ("mask: local", ("attention.mask: local is not allowed", "allowed: causal, full")),
        ("soft_cap: 0", ("attention.soft_cap: 0 is not allowed", SOFT_CAP, "write null")),
        ("soft_cap: 0.0", ("attention.soft_cap: 0.0 is not allowed", SOFT_CAP, "write null")),
        ("soft_cap: -5", ("attention.soft_cap: -5 is not allowed", SOFT_CAP)),
        ("soft_cap: 1.0e-40", ("attention.soft_cap: 1.0e-40 is not allowed", SOFT_CAP)),
        ("soft_cap: .inf", ("attention.soft_cap: .inf is not a finite number", SOFT_CAP)),
        ("soft_cap: .nan", ("attention.soft_cap: .nan is not a finite number", SOFT_CAP)),
        ("soft_cap: inf", ("attention.soft_cap: inf is a string", SOFT_CAP)),
        ("soft_cap: 1.0e+999", ("attention.soft_cap: 1.0e+999 is not a finite number", SOFT_CAP)),
    ],
)
def test_impossible_windows_and_caps(attention: str, parts: tuple[str, ...]) -> None:
    check({"attention": f"{{{attention}}}"}, *parts)


# Lists of kernels and backends.


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"kernels": "[]"}, ("kernels: an empty list",)),
        ({"backends": "[]"}, ("backends: an empty list",)),
        ({"kernels": "decode"}, ("kernels: decode is a string", "write a list: [decode]")),
        ({"kernels": "[decod]"}, ("kernels[0]: decod is not allowed", "did you mean decode?")),
        ({"kernels": "[decode, decode]"}, ("kernels[1]: 'decode' stands here again",)),
        ({"backends": "[cuda, cuda]"}, ("backends[1]: 'cuda' stands here again",)),
        ({"backends": "[hip]"}, ("backends[0]: hip is not allowed", "cuda, torch, triton")),
        ({"cache": "{block_size: 16, layout: nhd}"}, ("cache.layout: nhd", "did you mean NHD?")),
    ],
)
def test_lists_and_words(changes: dict[str, str | None], parts: tuple[str, ...]) -> None:
    check(changes, *parts)


def test_the_first_mistake_in_the_text_is_reported() -> None:
    text = spec_text(name="torch", heads="{query: 10, kv: 4, dim: 64}", arch="sm_1")
    assert "name: torch" in str(refused(text))
    lines = reversed(text.splitlines())
    assert "a.yaml:3:16: heads.query: 10" in str(refused("\n".join(lines)))


# Files.


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "a\0b.yaml", "x" * 5000):
        with pytest.raises(SpecError, match="cannot read the spec: ") as caught:
            load(path)
        assert "to fix: give the path of a YAML file" in str(caught.value)


def test_a_file_that_is_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"name: a\n# caf\xe9\n")
    with pytest.raises(SpecError, match=r"a\.yaml:2:6: not UTF-8: the byte 0xe9"):
        load(path)
    path.write_text(spec_text(), encoding="utf-16")
    with pytest.raises(SpecError, match=r"a\.yaml:1:1: not UTF-8"):
        load(path)


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    text = spec_text()
    path.write_text(text + "#" * (MAX_FILE_BYTES - len(text)))
    assert load(path).name == "llama3_8b"
    path.write_text(text + "#" * (MAX_FILE_BYTES - len(text) + 1))
    with pytest.raises(SpecError, match="too long for a spec"):
        load(path)


@pytest.mark.parametrize("name", ["a b.yaml", "a\n.yaml", "a\\.yaml", "`a`.yaml", "x" * 65])
def test_a_file_name_can_be_printed_in_emitted_code(name: str) -> None:
    with pytest.raises(SpecError, match=r"the file name .* cannot be printed"):
        parse(spec_text(), f"folder/{name}")
