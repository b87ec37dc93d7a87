"""One change to one emitted kernel, and all of them: the rules applied to a text.

It knows neither what a rule looks for nor how a mutant is run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.mutation.tokens import Tokens, own_part, tokenise

# What no rule may change: checks at compile time, the arguments' layout, and hints to the compiler.
LEFT_ALONE: Final = re.compile(
    r"static_assert\([^;]*;|^struct Params \{.*?^\};|__(?:launch_bounds|align)__\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)
FUNCTION: Final = re.compile(r"^(?![#/}\s]|template|static_assert).*$", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """Characters [begin, end) of the text become `put`."""

    begin: int
    end: int
    put: str


@dataclass(frozen=True)
class Change:
    """What a rule proposes. The first edit says where; others come after it in no order."""

    operator: str
    edits: tuple[Edit, ...]


Rule = Callable[[Tokens], Iterator[Change]]


@dataclass(frozen=True)
class Mutant:
    """A change to one text. `key` is the same for the same change to another spec's text."""

    operator: str
    key: tuple[str, ...]
    line: int
    code: str  # the whole line
    before: str
    after: str
    base: str
    edits: tuple[Edit, ...]

    @property
    def text(self) -> str:
        """The changed text."""
        return apply(self.base, self.edits)[0]

    @property
    def original(self) -> str:
        """The text unchanged, with the columns of the changed one."""
        return apply(self.base, self.edits)[1]


def one_line(text: str) -> str:
    """Text in one line, blanks folded."""
    return " ".join(text.split())


def apply(text: str, edits: tuple[Edit, ...]) -> tuple[str, str]:
    """(mutant, original), padded so that all that follows has one place in both.

    Places enter the code: primitives are told where they are called from.
    """
    mutant, original = text, text
    for edit in sorted(edits, key=lambda edit: -edit.begin):
        old, new = text[edit.begin : edit.end], edit.put
        width = max(len(old), len(new))
        missing = old.count("\n") - new.count("\n")
        old, new = old + "\n" * -missing, new + "\n" * missing
        if not missing and "\n" not in old:
            old, new = old.ljust(width), new.ljust(width)
        mutant = mutant[: edit.begin] + new + mutant[edit.end :]
        original = original[: edit.begin] + old + original[edit.end :]
    return mutant, original


def mutants(text: str, rules: tuple[Rule, ...]) -> Iterator[Mutant]:
    """Every change that the rules find in a kernel's own part, each text once."""
    tokens = tokenise(text, own_part(text))
    banned = [found.span() for found in LEFT_ALONE.finditer(text)]
    functions = [(found.start(), one_line(found.group())) for found in FUNCTION.finditer(text)]
    lines = text.splitlines()
    seen: set[int] = set()
    times: Counter[tuple[str, ...]] = Counter()
    for rule in rules:
        for change in rule(tokens):
            edit = change.edits[0]
            if any(begin <= edit.begin < end for begin, end in banned):
                continue
            mutant, original = apply(text, change.edits)
            if hash(mutant) in seen or mutant == original:
                continue
            seen.add(hash(mutant))
            line = tokens.line_of(edit.begin)
            inside = [name for begin, name in functions if begin <= edit.begin]
            code = lines[line - 1].strip()
            before, after = one_line(text[edit.begin : edit.end]), one_line(edit.put)
            place = (change.operator, inside[-1] if inside else "", code, before, after)
            times[place] += 1
            key = (*place, str(times[place]))
            yield Mutant(change.operator, key, line, code, before, after, text, change.edits)
