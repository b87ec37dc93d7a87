"""The compile cache's keys: everything that shapes code is in them, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import pagegen
from pagegen.archs import ARCHS
from pagegen.compile import Cache, compile_source
from pagegen.compile.cache import compile_key
from pagegen.dtypes import DTYPES
from pagegen.plan import Constant, Param, Plan
from tests.compile.samples import Text
from tests.stub_compiler import PLAN, SM_80, SOURCE, Stub


def other_value(value: Any) -> Any:
    """A different value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, *(value[-1:] or (Constant("EXTRA", 1, "extra"),)))
        case _:
            return next(row for row in DTYPES if row != value)


@pytest.mark.parametrize("name", [field.name for field in fields(Plan)])
def test_plans_that_differ_in_one_field_have_keys_and_symbols_of_their_own(
    stub: Stub, name: str
) -> None:  # enumerates the fields, so that a new one is tested the day it is added
    other = replace(PLAN, **{name: other_value(getattr(PLAN, name))})
    assert compile_key(other, SOURCE, SM_80) != compile_key(PLAN, SOURCE, SM_80)
    assert other.symbol != PLAN.symbol


@pytest.mark.parametrize("name", [field.name for field in fields(Param)])
def test_every_field_of_a_launch_argument_is_in_the_key(stub: Stub, name: str) -> None:
    row = PLAN.params[0]
    other = replace(PLAN, params=(replace(row, **{name: other_value(getattr(row, name))}),))
    base = replace(PLAN, params=(row,))
    assert compile_key(other, SOURCE, SM_80) != compile_key(base, SOURCE, SM_80)


def test_every_target_has_a_key_of_its_own(stub: Stub) -> None:  # sm_90 is not sm_90a
    assert len({compile_key(PLAN, SOURCE, row) for row in ARCHS}) == len(ARCHS)


def test_source_compiler_flags_and_version_are_in_the_key(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [compile_key(PLAN, SOURCE, SM_80)]
    keys.append(compile_key(PLAN, replace(SOURCE, text=SOURCE.text + "\n"), SM_80))
    stub.release = "stub 1.1"
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    stub.flags = ("-O2",)
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    monkeypatch.setattr(pagegen, "__version__", "9.9.9")
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    assert len(set(keys)) == len(keys)


def test_neither_time_nor_path_is_in_the_key(stub: Stub) -> None:
    moved = Text("elsewhere/" + SOURCE.path, SOURCE.text)
    assert compile_key(PLAN, moved, SM_80) == compile_key(PLAN, SOURCE, SM_80)


def test_two_texts_under_one_plan_do_not_mix_in_either_order(stub: Stub, tmp_path: Path) -> None:
    changed = replace(SOURCE, text=SOURCE.text.replace("127", "126"))
    for order in ((SOURCE, changed), (changed, SOURCE)):
        cache = Cache(tmp_path / order[0].digest)
        made = {source.text: compile_source(PLAN, source, SM_80, cache) for source in order}
        for source in order:
            assert compile_source(PLAN, source, SM_80, cache) == made[source.text]
            assert source.text.encode() in made[source.text].code
