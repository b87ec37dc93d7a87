"""One YAML scalar -> a typed value, or a trap: text that YAML readers do not agree on.

It knows no key and no field: which type is wanted where is the schema's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

Meaning = Literal["null", "boolean", "number", "date"]


@dataclass(frozen=True)
class Trap:
    """The value of a scalar that no field accepts, because readers disagree on what it means."""

    meaning: Meaning  # what the writer may have had in mind
    hint: str = ""  # how to write that


@dataclass(frozen=True)
class Scalar:
    """A scalar as written and as understood."""

    text: str
    value: str | int | float | bool | Trap | None
    got: str  # "an integer", "a string", ..., for messages
    quoted: bool = False

    def shown(self) -> str:
        """The scalar in a message: one line, quoted if it was, cut if long."""
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        if self.quoted:
            return f'"{repr(text)[1:-1]}"'
        return text if text.isprintable() else repr(text)[1:-1]


_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_PLAIN: Final[dict[str, tuple[bool | None, str]]] = {
    "null": (None, "null"),
    "true": (True, "a boolean"),
    "false": (False, "a boolean"),
}
# (pattern, what it is, what it may mean, how to write that); the first match decides.
_TRAPS: Final[tuple[tuple[str, str, Meaning, str], ...]] = (
    ("", "an empty value, which YAML reads as null", "null", "write null"),
    ("~|Null|NULL", "null in another spelling", "null", "write null"),
    (
        "[yY]|[nN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF",
        "a boolean to YAML 1.1",
        "boolean",
        "write true or false",
    ),
    (
        "True|TRUE|False|FALSE",
        "a boolean in another spelling",
        "boolean",
        "write true or false",
    ),
    (
        "[-+]?0[0-9_]+|0o[0-7]+",
        "an octal number to some YAML readers (016 is 14)",
        "number",
        "write a decimal number without leading zeros",
    ),
    (
        "[-+]?0[xb][0-9a-fA-F_]+",
        "a hexadecimal or binary number to some YAML readers",
        "number",
        "write a decimal number",
    ),
    (
        r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
        "a base-60 number to YAML 1.1 (1:30 is 90)",
        "number",
        "write a decimal number",
    ),
    ("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*", "a date to YAML 1.1", "date", ""),
    ("[-+]?[0-9]{19,}", "an integer of more than 18 digits", "number", "write a smaller number"),
    (
        "[-+]?[0-9][0-9_]*",
        "an integer with a sign or underscores",
        "number",
        "write digits only",
    ),
    (
        r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+",
        "a string to YAML 1.1 and a number to YAML 1.2",
        "number",
        "write a dot and a signed exponent, as in 1.0e-3",
    ),
    (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+)",
        "a number in an unusual spelling",
        "number",
        "write digits on both sides of the dot, as in 0.5",
    ),
    (
        r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "not a finite number",
        "number",
        "write a finite number",
    ),
)


def read_scalar(text: str, *, quoted: bool) -> Scalar:
    """Type `text` without guessing; a quoted scalar is always a string."""
    if quoted:
        return Scalar(text, text, "a string", quoted=True)
    if text in _PLAIN:
        value, got = _PLAIN[text]
        return Scalar(text, value, got)
    if _INTEGER.fullmatch(text):
        return Scalar(text, int(text), "an integer")
    if _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return Scalar(text, number, "a number with a fraction")
        return Scalar(text, Trap("number", "write a finite number"), "not a finite number")
    for pattern, got, meaning, hint in _TRAPS:
        if re.fullmatch(pattern, text):
            return Scalar(text, Trap(meaning, hint), got)
    return Scalar(text, text, "a string")
