"""The part of YAML that a spec may use, and the traps outside it; no value changes in silence."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st

from pagegen.errors import PagegenError, SpecError
from pagegen.spec import Spec, parse
from pagegen.yaml_scalar import Trap, read_scalar
from tests.spec_text import GOOD, spec_text


def refused(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(text, "a.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("-1", -1),
        ("0", 0),
        ("16.0", 16.0),
        ("1.0e-3", 0.001),
        ("-2.5E+1", -25.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("bf16", "bf16"),
        ("sm_90a", "sm_90a"),
    ],
)
def test_a_plain_scalar_has_one_obvious_type(text: str, value: object) -> None:
    scalar = read_scalar(text, quoted=False)
    assert scalar.value == value
    assert type(scalar.value) is type(value)
    assert read_scalar(text, quoted=True).value == text


@pytest.mark.parametrize(
    "text",
    """~ Null NULL y Y n N yes No NO on ON off Off True TRUE False 016 00 0o17 0x10 0b1 1_000 +5
    1:30 190:20:30 1e-3 1e3 1.0e3 5. .5 1.e+3 .inf -.INF .nan 2026-12-01 1234567890123456789
    2001-12-14t21:59:43.10-05:00 1.0e+999""".split(),
)
def test_a_trap_is_not_given_a_type(text: str) -> None:
    assert isinstance(read_scalar(text, quoted=False).value, Trap)


# The traps where a value is wanted: key, value, what it is, what is wanted, and a hint that helps.


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"name": "no"}, ("name: no is a boolean to YAML 1.1", "lower-case", 'the text: "no"')),
        ({"name": "123"}, ("name: 123 is an integer", "lower-case letters")),
        ({"name": "null"}, ("name: null is null", "lower-case letters")),
        ({"name": ""}, ("name: is an empty value",)),
        (
            {"attention": "{window: off}"},
            ("attention.window: off is a boolean", "an integer from 1", "write null"),
        ),
        ({"attention": "{window: ~}"}, ("attention.window: ~ is null in", "write null")),
        ({"attention": "{window: }"}, ("attention.window: is an empty value", "write null")),
        (
            {"cache": "{block_size: 016}"},
            ("cache.block_size: 016 is an octal", "an integer from 1 to 4096", "leading zeros"),
        ),
        (
            {"attention": "{soft_cap: 1e-3}"},
            ("attention.soft_cap: 1e-3 is a string to YAML 1.1", "a number from", "1.0e-3"),
        ),
        ({"attention": "{soft_cap: 1:30}"}, ("soft_cap: 1:30 is a base-60", "a number from")),
        ({"dtype": "~"}, ("dtype: ~ is null in", "a mapping with query, kv, out")),
        ({"cache": "{block_size: 16, layout: y}"}, ("cache.layout: y is a boolean", "HND, NHD")),
        (
            {"cache": "{block_size: 16.0}"},
            ("block_size: 16.0 is a number with a fraction", "an integer from 1 to 4096"),
        ),
        (
            {"cache": '{block_size: "16"}'},
            ('block_size: "16" is a string', "an integer from 1 to 4096", "remove the quotes"),
        ),
        ({"cache": "{block_size: true}"}, ("block_size: true is a boolean", "an integer from")),
        ({"cache": "{block_size: .inf}"}, ("block_size: .inf is not a finite", "an integer")),
        ({"cache": "{block_size: 2026-12-01}"}, ("2026-12-01 is a date", "an integer from")),
        ({"cache": "{block_size: 1_6}"}, ("1_6 is an integer with a sign or", "digits only")),
        ({"cache": "{block_size: null}"}, ("block_size: null is null", "an integer from")),
        ({"attention": "{sinks: no}"}, ("attention.sinks: no is a boolean", "true or false")),
        ({"attention": "{sinks: 0}"}, ("attention.sinks: 0 is an integer", "true or false")),
        ({"attention": '{window: "null"}'}, ('window: "null" is a string', "remove the quotes")),
        ({"attention": "null"}, ("attention: null is null", "a mapping with mask, window")),
        ({"cache": "16"}, ("cache: 16 is an integer", "a mapping with block_size, layout")),
        ({"cache": "[block_size]"}, ("cache: this is a list", "a mapping with block_size")),
        ({"cache": "{block_size: {tokens: 16}}"}, ("cache.block_size: this is a mapping",)),
        ({"name": "[a]"}, ("name: this is a list", "lower-case letters")),
        ({"dtype": "{query: 16}"}, ("dtype.query: 16 is an integer", "bf16, fp16, fp32")),
    ],
)
def test_a_value_of_the_wrong_type_names_everything(
    changes: dict[str, str | None], parts: tuple[str, ...]
) -> None:
    message = str(refused(spec_text(**changes)))
    for part in parts:
        assert part in message


# Keys.


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"cache": "{blok_size: 32}"},
            ("a.yaml:5:9: unknown key 'cache.blok_size'", "did you mean block_size?"),
        ),
        ({"kernel": "[decode]"}, ("unknown key 'kernel'", "did you mean kernels?")),
        ({"block_size": "16"}, ("unknown key 'block_size'", "move block_size under cache")),
        ({"cache": "{query: 3}"}, ("unknown key 'cache.query'", "under heads or dtype")),
        ({"cache": "{arch: sm_80}"}, ("unknown key 'cache.arch'", "move arch to the top level")),
        ({"null": "1"}, ("unknown key 'null'", "allowed: name, arch, heads")),
        ({"cache": None}, ("the key 'cache' is missing", "add cache to the top level")),
        ({"cache": "{}"}, ("the key 'cache.block_size' is missing", "an integer from 1 to 4096")),
        (
            {"cache": "{block_size: 16, block_size: 16}"},
            ("a.yaml:5:25: the key 'block_size' stands here again", "in line 5"),
        ),
    ],
)
def test_keys_are_known_and_stand_once(
    changes: dict[str, str | None], parts: tuple[str, ...]
) -> None:
    message = str(refused(spec_text(**changes)))
    for part in parts:
        assert part in message


def test_a_key_that_stands_twice_at_the_top() -> None:
    message = str(refused(spec_text() + "name: other\n"))
    assert "a.yaml:6:1: the key 'name' stands here again" in message
    assert "keep this or the one in line 1" in message


# What YAML has and a spec does not.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("a.yaml:1:1: an empty file",)),
        ("\n# only a comment\n", ("an empty file",)),
        ("---\n", ("not a spec: ", "a mapping of keys")),
        ("[a, b]", ("not a spec: this is a list", "a mapping of keys to values at top level")),
        ("llama", ("not a spec: llama is a string",)),
        (spec_text() + "---\n" + spec_text(), ("a.yaml:6:1: a second document", "one spec per")),
        ("base: &base {a: 1}\n", ("a.yaml:1:7: the anchor &base", "delete it")),
        ("&a name: x\n", ("a.yaml:1:1: the anchor &a",)),
        ("name: *base\n", ("a.yaml:1:7: the alias *base", "write the value out")),
        ("cache:\n  <<: {block_size: 16}\n", ("a.yaml:2:3: a merge key", "write the keys out")),
        ("name: !!str 12\n", ("a.yaml:1:7: the tag", "delete it")),
        ("name: !!python/object/apply:os.system [ls]\n", ("the tag",)),
        ("%YAML 1.1\n---\nname: a\n", ("a % directive", "delete the line")),
        ("? [a]\n: b\n", ("a key that is not a word",)),
        ("name:\ta\n", ("a.yaml:1:6: a tab", "use spaces")),
        ("cache:\n\tblock_size: 16\n", ("a.yaml:2:1: a tab",)),
        ("name: [a\n", ("not YAML: ", "a.yaml:2:1")),
        ("name: a: b\n", ("a.yaml:1:8: not YAML: mapping values are not allowed",)),
        ("name: 'a\n", ("not YAML: ",)),
        ("name: a\x07\n", ("a.yaml:1:8: not YAML: the character '\\x07'",)),
        ("name: a\n\ud800\n", ("a.yaml:2:1: not YAML: the character '\\ud800'",)),
        ('name: "\\UFFFFFFFF"\n', ("not YAML: ",)),
        ("a: [[[[[[[[[[", ("nested too deep", "4 levels")),
        ("[" * 60000, ("nested too deep",)),
        ("- " * 30000, ("nested too deep",)),
    ],
)
def test_only_the_plain_part_of_yaml(text: str, parts: tuple[str, ...]) -> None:
    message = str(refused(text))
    for part in parts:
        assert part in message


def test_a_caret_points_at_the_value() -> None:
    *_, line, caret = str(refused("\n\nname: [a, *b]\n")).splitlines()[:3]
    assert line[caret.index("^")] == "*"


# Any text gives a Spec or an error with a remedy, and never another exception.

WORDS = """null ~ true no 016 1e-3 1:30 9.0 16 0 -1 .inf bf16 fp8_e4m3 sm_90a [] {} [a] {a:b}
{query:1} "16" 'x' &a *a !!int << fp32 sm_80 gfx942 [cuda] decode causal""".split()
VALUES = st.one_of(st.sampled_from([*WORDS, *GOOD.values()]), st.text(max_size=20))
KEYS = st.one_of(st.sampled_from([*GOOD, "attention", "kernels"]), st.text(max_size=8))
ENTRIES = st.lists(st.tuples(KEYS, VALUES), max_size=8)


def either(text: str) -> None:
    try:
        assert isinstance(parse(text, "a.yaml"), Spec)
    except PagegenError as error:
        assert str(error)


@given(st.text())
@example("\x85\u2028a: \ufeff")
@example("%YAML 1." + "9" * 5000)
@example("a: " + "9" * 5000)
def test_any_text_gives_a_spec_or_an_error(text: str) -> None:
    either(text)


@given(st.text(alphabet="[]{}:,-?!&*|>'\"%#@` \n\ra0~.<\ufeff\x85", max_size=60))
@settings(max_examples=500)
def test_any_punctuation_gives_a_spec_or_an_error(text: str) -> None:
    either(text)


@given(ENTRIES)
@settings(max_examples=300)
def test_any_entries_give_a_spec_or_an_error(entries: list[tuple[str, str]]) -> None:
    either(spec_text() + "".join(f"{key}: {value}\n" for key, value in entries))
    either("".join(f"{key}: {value}\n" for key, value in entries))


@given(st.sampled_from(list(GOOD)), VALUES)
@settings(max_examples=300)
def test_any_value_gives_a_spec_or_an_error(key: str, value: str) -> None:
    either(spec_text(**{key: value}))
