"""Emitted CUDA text as tokens, with brackets matched: as much of C++ as rules need.

It leans on the text being formatted: a binary operator has a space on both sides, and the bracket
of a template none inside. It knows no kernel.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

LEXEME: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>0x[0-9a-fA-F]+[uUlL]*|\d[\d.]*(?:e[+-]?\d+)?[uUlLfF]*)
      | (?P<sign>->|\+\+|--|::|<<=|[-+*/%&|^<>=!]=|&&|\|\||<<|(?<=\s)>>|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
# Of binary operators; a higher number binds closer.
BINDING: Final = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
OPENING: Final = {"(": ")", "[": "]", "{": "}"}
ENDS_OPERAND: Final = {",", ";", "?", ":", "=", "+=", "-=", "*=", "/=", "^=", "return"}


@dataclass(frozen=True)
class Token:
    """A word of the text, `begin` characters from its start."""

    kind: str  # text, name, number, sign; or open and close
    word: str
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.word)


@dataclass(frozen=True)
class Tokens:
    """The part of a text that rules may change."""

    text: str
    row: tuple[Token, ...]
    partner: dict[int, int]  # of brackets, both ways
    starts: tuple[int, ...]  # of the text's lines

    def line_of(self, at: int) -> int:
        """The line, from 1, that character `at` is in."""
        return bisect_right(self.starts, at)

    def word(self, i: int) -> str:
        """The word of token `i`; empty past either end."""
        return self.row[i].word if 0 <= i < len(self.row) else ""

    def between(self, first: int, last: int) -> str:
        """The text from token `first` to the end of token `last`."""
        return self.text[self.row[first].begin : self.row[last].end]

    def is_binary(self, i: int) -> bool:
        """Whether token `i` is an operator between two operands."""
        token = self.row[i]
        if token.kind != "sign" or token.word not in BINDING:
            return False
        before, after = self.text[token.begin - 1], self.text[token.end]
        return before.isspace() and after.isspace()

    def operand_after(self, i: int) -> int:
        """The last token of the right operand of operator `i`."""
        level = BINDING[self.word(i)]
        j = i + 1
        while j + 1 < len(self.row):
            j = self.partner.get(j, j) if self.row[j].kind == "open" else j
            after = j + 1
            word, kind = self.word(after), self.row[after].kind
            if kind == "close" or word in ENDS_OPERAND:
                return j
            if self.is_binary(after) and BINDING[word] <= level:
                return j
            j = after
        return j

    def operand_before(self, i: int) -> int:
        """The first token of the left operand of operator `i`."""
        level = BINDING[self.word(i)]
        j = i - 1
        while j > 0:
            j = self.partner.get(j, j) if self.row[j].kind == "close" else j
            before = j - 1
            word, kind = self.word(before), self.row[before].kind
            if kind == "open" or word in ENDS_OPERAND or word == "}":
                return j
            if self.is_binary(before) and BINDING[word] < level:
                return j
            j = before
        return j

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """First and last token of each argument of the call whose bracket is token `opening`."""
        closing = self.partner[opening]
        found, first, j = [], opening + 1, opening + 1
        while j < closing:
            if self.row[j].kind == "open":
                j = self.partner[j]
            elif self.word(j) == ",":
                found.append((first, j - 1))
                first = j + 1
            j += 1
        return [*found, (first, closing - 1)] if first < closing else found


def tokenise(text: str, begin: int) -> Tokens:
    """The tokens from character `begin` on; preprocessor lines and comments are left out."""
    row: list[Token] = []
    for found in LEXEME.finditer(text, begin):
        kind, word, at = str(found.lastgroup), found.group(), found.start()
        if kind == "skip":
            continue
        if kind == "sign":
            kind = bracket(text, word, at)
        row.append(Token(kind, word, at))
    partner: dict[int, int] = {}
    pending: list[int] = []
    for i, token in enumerate(row):
        if token.kind == "open":
            pending.append(i)
        elif token.kind == "close":
            partner[i] = pending.pop()
            partner[partner[i]] = i
    lines = [0, *(found.end() for found in re.finditer(r"\n", text))]
    return Tokens(text, tuple(row), partner, tuple(lines))


def bracket(text: str, word: str, at: int) -> str:
    """open, close or sign; the brackets of templates are told from comparisons by their spaces."""
    if word in OPENING or (word == "<" and not text[at + 1].isspace()):
        return "open"
    if word in OPENING.values() or (word == ">" and not text[at - 1].isspace()):
        return "close"
    return "sign"


def own_part(text: str) -> int:
    """Where a kernel's own part begins: after the machine that a simulator replaces."""
    opening = text.index("#ifndef PAGEGEN_SIMULATOR")
    depth = 0
    for found in re.finditer(r"^[ \t]*#[ \t]*(if|endif)\w*[^\n]*\n", text[opening:], re.MULTILINE):
        depth += 1 if found[1] == "if" else -1
        if depth == 0:
            return opening + found.end()
    raise ValueError("the machine of the kernel has no end")
