"""Rules about order: barriers, waits, commits, fences, arrivals, copies, phases and stages.

Names are matched by what they contain, so that a primitive to come is covered when it is called
what it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.mutation.mutants import Change, Edit
from tests.mutation.statements import JUMPS, Statement, statements
from tests.mutation.tokens import Tokens

# What a call's name says it does; the first that matches counts.
CALLS: Final = (
    ("remove wait", re.compile(r"wait")),
    ("remove arrive", re.compile(r"arrive|expect")),
    ("remove barrier", re.compile(r"^__sync|barrier|^bar_")),
    ("remove commit", re.compile(r"commit")),
    ("remove fence", re.compile(r"fence")),
    ("remove zero-fill", re.compile(r"zero|clear|fill")),
    ("remove copy", re.compile(r"copy|^load|^start|bulk|tma")),
    ("remove store", re.compile(r"store|report")),
)
ORDERING: Final = {f"remove {what}" for what in ("wait", "barrier", "commit", "fence", "arrive")}
VOTE: Final = re.compile(r"^__syncthreads_\w+$|^__(any|all)_sync$")
PHASE: Final = re.compile(r"parity|phase", re.IGNORECASE)
BYTES: Final = re.compile(r"expect|bulk|tma")
SIZED: Final = re.compile(r"^(\w+?)_16$")


def name_of(tokens: Tokens, found: Statement) -> str:
    """What a statement is, for the table of results."""
    word = tokens.word(found.first)
    if word in JUMPS:
        return "remove jump"
    end = found.last + 1
    if any(tokens.word(i).endswith("=") and not tokens.is_binary(i) for i in top(tokens, found)):
        return "remove assignment"
    if any(tokens.word(i) == "(" for i in range(found.first, end)):
        return next((name for name, known in CALLS if known.search(word)), "remove call")
    return "remove statement"


def top(tokens: Tokens, found: Statement) -> Iterator[int]:
    """The tokens of a statement outside its brackets."""
    i = found.first
    while i <= found.last:
        if tokens.row[i].kind == "open":
            i = tokens.partner[i]
        elif tokens.row[i].kind == "sign":
            yield i
        i += 1


def removed_statements(tokens: Tokens) -> Iterator[Change]:
    """Leave out one statement."""
    for found in statements(tokens):
        begin, end = tokens.row[found.first].begin, tokens.row[found.last].end
        yield Change(name_of(tokens, found), (Edit(begin, end, ""),))


def late_statements(tokens: Tokens) -> Iterator[Change]:
    """Do a wait, a barrier, a commit, a fence after the statement that follows it."""
    found = list(statements(tokens))
    for one, two in pairwise(found):
        if name_of(tokens, one) not in ORDERING or two.first != one.last + 2:
            continue
        first, second = tokens.between(one.first, one.last), tokens.between(two.first, two.last)
        begin, end = tokens.row[one.first].begin, tokens.row[two.last].end
        yield Change("late " + name_of(tokens, one)[7:], (Edit(begin, end, f"{second}; {first}"),))


def calls(tokens: Tokens, name: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """(token of the name, token of the opening bracket) of every call of such a function."""
    for i, token in enumerate(tokens.row):
        if token.kind != "name" or not name.search(token.word):
            continue
        opening = i + 1
        if tokens.word(opening) == "<":
            opening = tokens.partner[opening] + 1
        before = tokens.row[i - 1] if i else token
        is_declared = before.kind == "name" and before.word != "return"
        if tokens.word(opening) == "(" and not is_declared:
            yield i, opening


def call_change(tokens: Tokens, operator: str, i: int, opening: int, put: str) -> Change:
    """The whole call becomes `put`."""
    end = tokens.row[tokens.partner[opening]].end
    return Change(operator, (Edit(tokens.row[i].begin, end, put),))


def argument_change(tokens: Tokens, operator: str, argument: tuple[int, int], put: str) -> Change:
    """An argument becomes `put`, in which {} is what it was."""
    first, last = argument
    begin, end = tokens.row[first].begin, tokens.row[last].end
    return Change(operator, (Edit(begin, end, put.format(tokens.between(first, last))),))


def votes(tokens: Tokens) -> Iterator[Change]:
    """A vote of many threads becomes this thread's own opinion."""
    for i, opening in calls(tokens, VOTE):
        first, last = tokens.arguments(opening)[-1]
        yield call_change(tokens, "drop vote", i, opening, f"({tokens.between(first, last)})")


def weaker_waits(tokens: Tokens) -> Iterator[Change]:
    """One more group may be pending."""
    for i, _ in calls(tokens, re.compile("wait")):
        if tokens.word(i + 1) == "<":
            yield argument_change(tokens, "weaken wait", tokens.arguments(i + 1)[-1], "{} + 1")


def phases(tokens: Tokens) -> Iterator[Change]:
    """The other phase of a barrier that has two."""
    for i, token in enumerate(tokens.row):
        before, after = tokens.row[i - 1], tokens.word(i + 1)
        if token.kind != "name" or not PHASE.search(token.word) or before.kind == "name":
            continue
        if after.endswith("=") and after != "==":
            continue
        yield Change("flip phase", (Edit(token.begin, token.end, f"({token.word} ^ 1)"),))


def byte_counts(tokens: Tokens) -> Iterator[Change]:
    """A barrier that expects 16 bytes more or less; a copy of 4 bytes instead of 16."""
    for _, opening in calls(tokens, BYTES):
        for argument in tokens.arguments(opening):
            if re.search(r"bytes|BYTES|sizeof", tokens.between(*argument)):
                yield argument_change(tokens, "alter byte count", argument, "({}) - 16")
                yield argument_change(tokens, "alter byte count", argument, "({}) + 16")
    for i, _ in calls(tokens, SIZED):
        token = tokens.row[i]
        if "copy" in token.word:
            put = SIZED.sub(r"\1_4", token.word)
            yield Change("alter byte count", (Edit(token.begin, token.end, put),))


def forced_copies(tokens: Tokens) -> Iterator[Change]:
    """A copy that reads what is not visible."""
    for _, opening in calls(tokens, re.compile(r"^copy_async")):
        yield argument_change(tokens, "force visible", tokens.arguments(opening)[-1], "true")


def plain_arrivals(tokens: Tokens) -> Iterator[Change]:
    """An arrival that releases and acquires nothing."""
    for i, opening in calls(tokens, re.compile(r"^arrive")):
        counter = tokens.between(opening + 1, tokens.partner[opening] - 1)
        yield call_change(tokens, "weaken arrive", i, opening, f"(*({counter}))++")
        yield call_change(tokens, "weaken arrive", i, opening, f"atomicAdd({counter}, 1)")


def other_stages(tokens: Tokens) -> Iterator[Change]:
    """The next stage of a ring."""
    for _, opening in calls(tokens, re.compile(r"^ring$|stage_of|slot_of")):
        yield argument_change(tokens, "next stage", tokens.arguments(opening)[0], "{} + 1")


SYNC_RULES: Final = (
    removed_statements, late_statements, votes, weaker_waits, phases, byte_counts, forced_copies,
    plain_arrivals, other_stages,
)  # fmt: skip
