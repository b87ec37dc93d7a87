"""A tree against the schema: unknown and missing keys, types and ranges, at their line and column.

It knows no particular key: what is allowed, it reads from the schema.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import reduce
from typing import Final, get_type_hints

import msgspec
from msgspec import inspect

from pagegen.errors import SpecError
from pagegen.schema import ARCH_NAMES, NOT_BUILT, Document, Section
from pagegen.yaml_scalar import Scalar, Trap, read_scalar
from pagegen.yaml_tree import Node

KeyPath = tuple[str | int, ...]
_WORDS: Final = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.StrType: "text",
    inspect.IntType: "an integer",
    inspect.FloatType: "a number",
}


def read_document(root: Node) -> Document:
    """The tree as a Document. Raises SpecError at the first key or value that does not fit."""
    _check_keys(root, Document, ())
    try:
        return msgspec.convert(root.plain(), Document)
    except msgspec.ValidationError as error:
        raise _misfit(root, str(error)) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean x?` for the known word closest to `word`, or nothing."""
    spelling = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(spelling), n=1)
    return f"did you mean {spelling[close[0]]}?" if close else ""


def nearest_arch(word: str) -> str:
    """The same for targets, of which people write the number only: 9.0, 90, 90a."""
    number = re.fullmatch(r"([0-9]+)\.?([0-9]a?)", word)
    return nearest("sm_" + "".join(number.groups()) if number else word, ARCH_NAMES)


def dotted(path: KeyPath) -> str:
    """A path as people write it: heads.query, arch[1]."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def wanted(path: KeyPath) -> str:
    """What the schema accepts at `path`, in words."""
    return _words(reduce(_step, path, inspect.type_info(Document)))


def _step(info: inspect.Type, step: str | int) -> inspect.Type:
    """The type one step below `info`; a list's description covers its items."""
    if isinstance(info, inspect.StructType):
        return next(field.type for field in info.fields if field.name == step)
    return info.item_type if isinstance(info, inspect.VarTupleType) else info


def _words(info: inspect.Type) -> str:
    """A type in words; the schema's own description wins."""
    match info:
        case inspect.Metadata(extra_json_schema={"description": str() as words}):
            return words
        case inspect.UnionType():
            return " or ".join(_words(row) for row in info.types)
        case inspect.LiteralType():
            return ", ".join(str(value) for value in info.values)
        case inspect.VarTupleType():
            return f"a list, not empty, of: {_words(info.item_type)}"
        case inspect.StructType():
            return f"a mapping with {', '.join(field.name for field in info.fields)}"
        case inspect.IntType() | inspect.FloatType():
            multiple = f", a multiple of {info.multiple_of}" if info.multiple_of else ""
            return f"{_WORDS[type(info)]} from {info.ge:.15g} to {info.le:.15g}{multiple}"
    return _WORDS[type(info)]


def _sections(section: type[Section]) -> dict[str, type[Section]]:
    """The keys of `section` that hold a section of their own."""
    hints = get_type_hints(section)
    return {
        key: hint
        for key, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, Section)
    }


def _check_keys(node: Node, section: type[Section], path: KeyPath) -> None:
    """Refuse unknown keys in the order of the text, then missing ones."""
    if not isinstance(node.value, dict):
        return  # msgspec will say so, with the type
    below = _sections(section)
    known = section.__struct_fields__
    for key, child in node.value.items():
        if key not in known:
            where = dotted((*path, key))
            raise SpecError(
                f"{where}: {NOT_BUILT[key]}" if key in NOT_BUILT else f"unknown key {where!r}",
                allowed=", ".join(known),
                remedy=_home(key) or nearest(key, known),
                position=child.begin,
            )
        if key in below:
            _check_keys(child, below[key], (*path, key))
    for field in msgspec.structs.fields(section):
        if field.required and field.name not in node.value:
            place = (*path, field.name)
            raise SpecError(
                f"the key {dotted(place)!r} is missing",
                allowed=wanted(place),
                remedy=f"add {field.name} to {dotted(path) or 'the top level'}",
                position=node.begin,
            )


def _home(key: str) -> str:
    """A hint for a known key that stands at the wrong level."""
    if key in Document.__struct_fields__:
        return f"move {key} to the top level"
    homes = [name for name, row in _sections(Document).items() if key in row.__struct_fields__]
    return f"move {key} under {' or '.join(homes)}" if homes else ""


def _misfit(root: Node, message: str) -> SpecError:
    """msgspec's "Expected `int`, got `str` - at `$.heads.query`" at its place in the text."""
    place = message.rpartition("`$")[2]
    found = re.findall(r"\.(\w+)|\[(\d+)\]", place)
    path: KeyPath = tuple(int(index) if index else name for name, index in found)
    node = root.find(path)
    if isinstance(node.value, list) and not node.value:
        asked = "an empty list"
    elif isinstance(node.value, Scalar) and ", got `" not in message:
        asked = f"{node.value.shown()} is not allowed"  # the right type, but not in range
    else:
        asked = node.got()
    return SpecError(
        f"{dotted(path)}: {asked}",
        allowed=wanted(path),
        remedy=_remedy(node, path),
        position=node.position,
    )


def _remedy(node: Node, path: KeyPath) -> str:
    """What to write instead, where a guess is safe."""
    scalar, want = node.value, wanted(path)
    if not isinstance(scalar, Scalar):
        return ""
    if path == ("name",):
        return f'quote it if you mean the text: "{scalar.text}"' if scalar.text else ""
    if path[0] == "arch":
        return nearest_arch(scalar.text)
    if scalar.quoted and not isinstance(read_scalar(scalar.text, quoted=False).value, str | Trap):
        return "remove the quotes"
    if want.startswith("a list"):
        return f"write a list: [{scalar.shown()}]"
    if isinstance(scalar.value, str):
        return nearest(scalar.text, re.findall(r"\w+", want))
    if isinstance(scalar.value, Trap):
        meant = {"boolean": "true or false", "number": " from "}.get(scalar.value.meaning, "null")
        if meant in want:
            return scalar.value.hint
    off = isinstance(scalar.value, Trap) or not scalar.value
    return "write null to turn it off" if off and want.endswith("or null") else ""
