"""The rules on a few lines, among them primitives that no kernel has yet."""

from __future__ import annotations

import re

import pytest

from tests.mutation.jobs import RULES
from tests.mutation.mutants import Mutant, mutants

HEAD = "#ifndef PAGEGEN_SIMULATOR\n#if X\nint machine = 1;\n#endif\n#endif\n"
BODY = """
__device__ int place(int row, int chunk) {
  return row * 8 + (chunk ^ row % 8);
}

struct Params {
  int size;  // 1 + 2
};

extern "C" __global__ void __launch_bounds__(64 + 64) kernel(const Params p) {
  static_assert(sizeof(Params) == 4, "1 + 1");
  const bool visible = first<1, 2>(p) && p.size < 3;
  wait_copies<2 * STAGES - 1>();
  __syncthreads();
  wait_barrier(full[stage], parity);
  expect_bytes(full[stage], K_BYTES + V_BYTES);
  fence_proxy_async();
  arrive_barrier(empty[stage]);
  parity ^= 1;
  for (int i = 0; i < 4; ++i) copy_async_16(to + place(i, 1), from, visible);
  run([&] { store(max(p.size, 7)); });
  float x = total == 0.0f ? 0.0f : 1.0f / total;
}
"""


def changes() -> list[Mutant]:
    """All of them."""
    return list(mutants(HEAD + BODY, RULES))


EXPECTED = [
    ("remove wait", "wait_copies<2 * STAGES - 1>()", ""),
    ("weaken wait", "2 * STAGES - 1", "2 * STAGES - 1 + 1"),
    ("late wait", "wait_copies<2 * STAGES - 1>(); __syncthreads()",
     "__syncthreads(); wait_copies<2 * STAGES - 1>()"),
    ("remove barrier", "__syncthreads()", ""),
    ("remove wait", "wait_barrier(full[stage], parity)", ""),
    ("flip phase", "parity", "(parity ^ 1)"),
    ("remove arrive", "expect_bytes(full[stage], K_BYTES + V_BYTES)", ""),
    ("alter byte count", "K_BYTES + V_BYTES", "(K_BYTES + V_BYTES) - 16"),
    ("remove fence", "fence_proxy_async()", ""),
    ("remove arrive", "arrive_barrier(empty[stage])", ""),
    ("remove assignment", "parity ^= 1", ""),
    ("force visible", "visible", "true"),
    ("alter byte count", "copy_async_16", "copy_async_4"),
    ("shift comparison", "<", "<="),
    ("drop condition", "&& p.size < 3", ""),
    ("drop condition", "first<1, 2>(p) &&", ""),
    ("force flag", "first<1, 2>(p) && p.size < 3", "true"),
    ("drop xor", "^ row % 8", ""),
    ("plain place", "place", "place_plain"),
    ("drop bound", "max(p.size, 7)", "(7)"),
    ("remove store", "store(max(p.size, 7))", ""),
    ("drop choice", "total == 0.0f ? 0.0f : 1.0f / total", "(1.0f / total)"),
    ("negate equality", "==", "!="),
]  # fmt: skip


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_rule_finds_its_change(expected: tuple[str, str, str]) -> None:
    assert expected in {(each.operator, each.before, each.after) for each in changes()}


def test_the_rest_of_a_text_is_left_alone() -> None:
    for each in changes():
        assert each.text.startswith(HEAD)
        for line in ("int size;  // 1 + 2", "static_assert(sizeof", "__launch_bounds__(64 + 64)"):
            assert line in each.text, each


def test_every_change_is_another_one_and_keeps_its_lines() -> None:
    found = changes()
    assert len({each.text for each in found}) == len({each.key for each in found}) == len(found)
    for each in found:
        assert each.text != each.original
        assert "".join(each.original.split()) == "".join((HEAD + BODY).split())
        if each.operator != "plain place":  # the new function has a line of its own
            assert each.text.count("\n") == (HEAD + BODY).count("\n"), each


def test_without_its_xor_a_place_is_another_function() -> None:
    plain = next(each for each in changes() if each.operator == "plain place").text
    assert re.search(r"int place_plain\(.*\) \{ return row \* 8 \+ \(chunk ?\); \}", plain)
    assert "copy_async_16(to + place_plain(i, 1)" in " ".join(plain.split())
