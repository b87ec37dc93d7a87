"""One page of errors: what was asked, what is allowed, what to do, and where."""

from __future__ import annotations

import inspect

import pytest

from pagegen import errors
from pagegen.errors import PagegenError, Position, SpecError

KINDS = [
    row
    for _, row in inspect.getmembers(errors, inspect.isclass)
    if issubclass(row, PagegenError) and row is not PagegenError
]


def test_a_message_in_full() -> None:
    position = Position("specs/a.yaml", 3, 7, "name: 9lives")
    error = SpecError("9lives is not a name", allowed="a word", remedy="rename", position=position)
    assert str(error) == (
        "specs/a.yaml:3:7: 9lives is not a name\n"
        "    name: 9lives\n"
        "          ^\n"
        "  allowed: a word\n"
        "  to fix: rename"
    )
    assert error.where == "specs/a.yaml:3:7"


def test_a_message_says_only_what_is_known() -> None:
    assert str(SpecError("odd")) == "odd"
    assert str(SpecError("odd", where="arch")) == "arch: odd"
    assert str(SpecError("odd", remedy="even")) == "odd\n  to fix: even"


def test_the_caret_of_a_first_column() -> None:
    assert Position("a", 1, 1, "x").caret() == "    x\n    ^"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_caught_as_one_and_says_when_it_happens(kind: type[PagegenError]) -> None:
    with pytest.raises(PagegenError, match="here: asked") as caught:
        raise kind("asked", allowed="this", remedy="that", where="here")
    assert (caught.value.asked, caught.value.allowed) == ("asked", "this")
    assert kind.__doc__ and kind.__doc__ != PagegenError.__doc__
