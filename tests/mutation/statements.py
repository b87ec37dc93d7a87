"""Statements of a kernel: where each begins and ends, and which can be left out.

It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutation.tokens import Tokens

HEADERS = {"if", "for", "while", "switch"}
TYPES = {
    "const", "constexpr", "static", "using", "struct", "template", "extern", "typename", "unsigned",
    "int", "float", "bool", "long", "auto", "void", "double", "return", "static_assert", "typedef",
    "short", "char", "explicit", "public", "private", "case", "default", "__device__",
}  # fmt: skip
JUMPS = {"return", "break", "continue"}


@dataclass(frozen=True)
class Statement:
    """Tokens first .. last, the last before its semicolon."""

    first: int
    last: int


def statements(tokens: Tokens) -> Iterator[Statement]:
    """Every statement of every function that can be left out: calls, assignments and bare jumps."""
    for i in range(1, len(tokens.row)):
        if not starts(tokens, i):
            continue
        last = end_of(tokens, i)
        if last >= i and is_removable(tokens, i, last):
            yield Statement(i, last)


def starts(tokens: Tokens, i: int) -> bool:
    """Whether a statement may begin at token `i`."""
    before = tokens.word(i - 1)
    if before in (";", "}", "else"):
        return inside_braces(tokens, i)
    if before == "{":
        return opens_body(tokens, i - 1)
    if before == ")":
        header = tokens.partner[i - 1] - 1
        word = tokens.word(header)
        return word in HEADERS or (word == "constexpr" and tokens.word(header - 1) == "if")
    return False


def inside_braces(tokens: Tokens, i: int) -> bool:
    """Whether the innermost bracket round token `i` is a brace: not so within for (a; b; c)."""
    depth = 0
    for j in range(i - 1, -1, -1):
        kind = tokens.row[j].kind
        depth += 1 if kind == "close" else -1 if kind == "open" else 0
        if depth < 0:
            return tokens.word(j) == "{"
    return False


def opens_body(tokens: Tokens, i: int) -> bool:
    """Whether brace `i` opens statements, and no list of values."""
    return tokens.word(i - 1) in (")", "else", "{", "}", ";", "]", "do")


def end_of(tokens: Tokens, first: int) -> int:
    """The last token before the statement's semicolon; first - 1 where it has none."""
    j = first
    while j < len(tokens.row):
        if tokens.word(j) == ";":
            return j - 1
        if tokens.row[j].kind == "close":
            return first - 1
        j = tokens.partner.get(j, j) + 1 if tokens.row[j].kind == "open" else j + 1
    return first - 1


def is_removable(tokens: Tokens, first: int, last: int) -> bool:
    """Whether the statement declares nothing and gives nothing back."""
    word = tokens.word(first)
    if word in JUMPS:
        return first == last
    if word in TYPES | HEADERS | {"else"} or word in ("{", "}"):
        return False
    if word in ("*", "++", "--", "("):
        return True
    if tokens.row[first].kind != "name":
        return False
    after = first + 1
    while tokens.word(after) == "::":
        after += 2
    if tokens.word(after) == "<":
        after = tokens.partner[after] + 1
    # `Type name`, `Type* name` and `Type& name` declare.
    if tokens.word(after) in ("*", "&") and not tokens.is_binary(after):
        return False
    return tokens.row[after].kind != "name"
