"""Rules about values: comparisons, conditions, bounds, swizzles, sums, strides, shuffles.

It knows no kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.mutation.mutants import Change, Edit
from tests.mutation.statements import end_of
from tests.mutation.sync_rules import call_change, calls
from tests.mutation.tokens import Tokens

NEIGHBOURS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
BOUND: Final = re.compile(r"^f?(min|max)f?$")
SHUFFLE: Final = re.compile(r"^__shfl_|^transpose_matrix$")
BALLOT: Final = re.compile(r"^__ballot_sync$")
DROPPED: Final = {"+": "drop term", "-": "drop term", "*": "drop factor", "/": "drop divisor",
                  "%": "drop modulus", "^": "drop xor", "|": "drop term", "<<": "drop factor",
                  ">>": "drop divisor"}  # fmt: skip
INTEGER: Final = re.compile(r"^(0x[0-9a-fA-F]+|\d+)([uUlL]*)$")


def comparisons(tokens: Tokens) -> Iterator[Change]:
    """Off by one, or the other way round."""
    for i, token in enumerate(tokens.row):
        if token.word in NEIGHBOURS and tokens.is_binary(i):
            name = "negate equality" if token.word in ("==", "!=") else "shift comparison"
            yield Change(name, (Edit(token.begin, token.end, NEIGHBOURS[token.word]),))


def operands(tokens: Tokens) -> Iterator[Change]:
    """`a && b` becomes a, or b; `a op b` becomes a."""
    for i, token in enumerate(tokens.row):
        if not tokens.is_binary(i):
            continue
        first, last = tokens.operand_before(i), tokens.operand_after(i)
        end = tokens.row[last].end
        is_logic = token.word in ("&&", "||", "&")
        if token.word in DROPPED or is_logic:
            name = DROPPED.get(token.word, "drop condition")
            dropped = tokens.between(i + 1, last)
            if "stride" in dropped or "stride" in tokens.between(first, i - 1):
                name = "drop stride"
            begin = tokens.row[i - 1].end
            yield Change(name, (Edit(begin, end, ""),))
        if is_logic:
            begin = tokens.row[first].begin
            yield Change("drop condition", (Edit(begin, tokens.row[i + 1].begin, ""),))


def conditions(tokens: Tokens) -> Iterator[Change]:
    """`if` always or never; a choice that always falls the same way; a flag that never changes."""
    for i, token in enumerate(tokens.row):
        if token.word == "if":
            opening = i + 1 if tokens.word(i + 1) == "(" else i + 2
            begin, end = tokens.row[opening].end, tokens.row[tokens.partner[opening]].begin
            for put in ("true", "false"):
                yield Change(f"if {put}", (Edit(begin, end, put),))
        if token.word == "bool" and tokens.word(i + 2) == "=":
            last = end_of(tokens, i + 3)
            begin, end = tokens.row[i + 3].begin, tokens.row[last].end
            for put in ("true", "false"):
                yield Change("force flag", (Edit(begin, end, put),))
        if token.word == "?":
            yield from choices(tokens, i)


def choices(tokens: Tokens, i: int) -> Iterator[Change]:
    """`c ? a : b` becomes a, or b, c being evaluated all the same."""
    first = i - 1
    while True:
        first = tokens.partner[first] if tokens.row[first].kind == "close" else first
        before = tokens.row[first - 1]
        if before.kind == "open" or before.word in (",", ";", "=", "+=", "return", ":", "?", "{"):
            break
        first -= 1
    middle = i + 1
    depth = 0
    while depth or tokens.word(middle) != ":":
        depth += {"?": 1, ":": -1}.get(tokens.word(middle), 0)
        middle = tokens.partner[middle] if tokens.row[middle].kind == "open" else middle
        middle += 1
    last = middle + 1
    while True:
        last = tokens.partner[last] if tokens.row[last].kind == "open" else last
        after = tokens.row[last + 1]
        if after.kind == "close" or after.word in (",", ";"):
            break
        last += 1
    begin, end = tokens.row[first].begin, tokens.row[last].end
    for operand in (tokens.between(i + 1, middle - 1), tokens.between(middle + 1, last)):
        yield Change("drop choice", (Edit(begin, end, f"({operand})"),))


def bounds(tokens: Tokens) -> Iterator[Change]:
    """min(a, b) and max(a, b) become a, or b."""
    for i, opening in calls(tokens, BOUND):
        for first, last in tokens.arguments(opening):
            put = f"({tokens.between(first, last)})"
            yield call_change(tokens, "drop bound", i, opening, put)


def shuffles(tokens: Tokens) -> Iterator[Change]:
    """A lane's own value in place of another's."""
    for i, opening in calls(tokens, SHUFFLE):
        found = tokens.arguments(opening)
        first, last = found[1] if len(found) > 1 else found[0]
        yield call_change(tokens, "drop shuffle", i, opening, f"({tokens.between(first, last)})")
    for i, opening in calls(tokens, BALLOT):
        first, last = tokens.arguments(opening)[1]
        put = f"unsigned({tokens.between(first, last)})"
        yield call_change(tokens, "drop shuffle", i, opening, put)


def numbers(tokens: Tokens) -> Iterator[Change]:
    """One more; 1.0f for 0.0f."""
    for token in tokens.row:
        if token.kind != "number":
            continue
        found = INTEGER.match(token.word)
        if found:
            put = f"{int(found[1], 0) + 1 & 0xFFFFFFFF}{found[2]}"
            yield Change("next number", (Edit(token.begin, token.end, put),))
        elif token.word == "0.0f":
            yield Change("next number", (Edit(token.begin, token.end, "1.0f"),))


def plain_places(tokens: Tokens) -> Iterator[Change]:
    """One caller of a swizzle that does not swizzle: only the writing side, or only the reading."""
    for i, token in enumerate(tokens.row):
        if token.kind != "name" or tokens.word(i + 1) != "(" or tokens.row[i - 1].kind != "name":
            continue
        body = tokens.partner[i + 1] + 1
        if tokens.word(body) != "{":
            continue
        xors = [j for j in range(body, tokens.partner[body]) if tokens.word(j) == "^"]
        if not xors:
            continue
        begin = tokens.text.rfind("\n\n", 0, token.begin) + 2
        end = tokens.row[tokens.partner[body]].end
        plain, name = tokens.text[begin:end], f"{token.word}_plain"
        for j in reversed(xors):
            cut = tokens.row[tokens.operand_after(j)].end - begin
            plain = plain[: tokens.row[j].begin - begin] + plain[cut:]
        plain = "\n" + re.sub(rf"\b{token.word}\b", name, one_line_code(plain)) + "\n"
        for caller, _ in calls(tokens, re.compile(rf"^{token.word}$")):
            at = tokens.row[caller]
            yield Change("plain place", (Edit(at.begin, at.end, name), Edit(end, end, plain)))


def one_line_code(text: str) -> str:
    """Code without comments, in one line."""
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


VALUE_RULES: Final = (
    comparisons, operands, conditions, bounds, shuffles, numbers, plain_places,
)  # fmt: skip
