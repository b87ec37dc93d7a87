"""Changes that nothing notices, and why: each was looked at.

A row stands for changes of one kind to lines that contain its code. A survivor without a row fails
a test; what is written here is shown beside it by tests.mutation.run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.mutation.rows import Row


@dataclass(frozen=True)
class Known:
    """Expressions that must be found in a row's kernel, operator, line, and what changed."""

    kernel: str
    operator: str
    code: str
    change: str
    why: str


GUARDED: Final = "one round more does nothing: the test inside the loop stops it"
SLOWER: Final = "the same result, later or with more memory: only speed tells"
REDUNDANT: Final = "redundant: "
SAME: Final = "the same by arithmetic: "

KNOWN: Final[tuple[Known, ...]] = (
    # All kernels.
    Known("", "shift comparison", "for (int i = 0; i < ITEMS; ++i)", "", GUARDED),
    # write_kv
    Known("write_kv", "shift comparison", "pass < PASSES", "", GUARDED),
    Known("write_kv", "next number", "SKIPPED = -1", "", SAME + "any negative number marks it"),
    # merge_states
    Known("merge", "shift comparison", "i < LANE_VECTORS", "", GUARDED),
    Known("merge", "drop choice|next number", "float scale = total == 0.0f", "",
          REDUNDANT + "total is 0 where both sides are empty, and share_of gives 0 for those"),
    Known("merge", "next number", "float pivot = top == -INFINITE", "0.0f -> 1.0f",
          SAME + "any finite pivot does where both sides are empty"),
    Known("merge", "next number", "if (inside && lane == 0)", "0 -> 1",
          SAME + "any one lane of the row may write its lse"),
    # decode
    Known("decode", "remove jump|shift comparison|if false", "if (token >", "", SLOWER),
    Known("decode", "wait", "wait_copies<0>", "",
          REDUNDANT + "past a part's end load_tile copies nothing, so all groups left are empty"),
    Known("decode", "late commit", "commit_copies()", "; load_tile<HEAD_DIM_V",
          SAME + "V joins K's group and its own is empty: the wait for K covers more"),
    Known("decode", "late commit", "commit_copies()", "; stage = stage ==",
          SAME + "no copy is started in between"),
    Known("decode", "late barrier", "__syncwarp()", "advance(", SAME + "advance is no copy"),
    Known("decode", "shift comparison", "chunk < DIM / 8", "", GUARDED),
    Known("decode", "shift comparison", "distance < 32", "",
          SAME + "lane ^ 32 is the lane itself, and its maximum with itself the same"),
    Known("decode", "shift comparison", "v < V_TILES", "", GUARDED),
    Known("decode", "shift comparison", "first < num_active", "",
          SAME + "a batch of no parts has weights of 0"),
    Known("decode", "drop choice", "constexpr int LINE_BYTES", "",
          SAME + "the numbers of a sum have no bit in common, so an xor adds in any line"),
    Known("decode", "drop modulus", "first_id = index % FETCH_TILES", "",
          SAME + "a shuffle counts lanes modulo 32, which FETCH_TILES * TILE_IDS is"),
    Known("decode", "drop choice", "constexpr int LANES = PITCH < 8", "", SLOWER),
    Known("decode", "drop choice", "normalise(total, max == -INFINITE", "",
          REDUNDANT + "with no weight -inf + log2(0) is -inf too"),
    Known("decode", "drop bound", "max(seq_len, 0)", "-> (seq_len)", "no length is negative"),
    Known("decode", "drop bound", "min(num_splits, ceil_div(num_rounds", "-> (num_splits)", SLOWER),
    Known("decode", "drop bound", "max(num_parts, 1)", "-> (1)", SLOWER),
    Known("decode", "drop bound", "part.begin = max(begin, part_begin)", "-> (begin)",
          REDUNDANT + "a part's tiles begin at part_begin, so no token before it is asked about"),
    Known("decode", "drop shuffle", "known to be uniform", "", "a hint to the compiler"),
    Known("decode", "assignment|drop choice", "from_row = visible ? from_row", "",
          REDUNDANT + "a copy of no bytes reads nothing, wherever it points"),
    Known("decode", "drop condition", "if (is_visible(part, token + row) &&", "",
          REDUNDANT + "rows that are not visible are zeros in shared memory"),
    # prefill
    Known("prefill", "shift comparison", "offset < count", "",
          SAME + "the sequence after the last candidate begins past every tile"),
    Known("prefill", "shift comparison", "pass < TILE_M / ROWS", "",
          SAME + "rows more lie where K's first tile comes later"),
    Known("prefill", "shift comparison|drop condition", "const bool visible = (key + ID_ROWS >", "",
          SAME + "an id more is read, of keys that nobody sees"),
    Known("prefill", "", "Q_HELD", "", "no plan holds q in registers: Q_HELD is always 0"),
    Known("prefill", "", "q[m][i] = held", "", "no plan holds q in registers: Q_HELD is always 0"),
    Known("prefill", "shift comparison", "SLACK", "", SAME + "any reference gives one result"),
    Known("prefill", "shift comparison", "row < TILE_M + NUM_STAGES * TILE_N", "",
          SAME + "16 bytes more, where V comes later"),
    Known("prefill", "shift comparison", "pass < MOST_PASSES", "", GUARDED),
    Known("prefill", "drop condition", "column + LANES * CHUNK <= HEAD_ELEMENTS ||", "",
          SAME + "the first term says for a whole line, at compile time, what the second says"),
    Known("prefill", "drop condition", "const bool unseen = MASKED &&", "MASKED &&",
          SAME + "in a whole tile every row has seen something"),
    Known("prefill", "drop choice", "seq_row = visible ? work.first_row", "first_row + row)",
          REDUNDANT + "a copy of no bytes reads nothing, wherever it points"),
    Known("prefill", "remove call", "attend(work.last_full, Whole{})", "", SLOWER),
    Known("prefill", "force flag", "static constexpr bool value = false", "", SLOWER),
    Known("prefill", "force flag", "bool moves = false;", "-> true", SLOWER),
    Known("prefill", "if true", "if (__any_sync(0xffffffffu, moves))", "", SLOWER),
    Known("prefill", "drop choice", "constexpr int STEP = masked.value", "", SLOWER),
    Known("prefill", "if true", "if constexpr (masked.value)", "", SLOWER),
    Known("prefill", "equality|condition", "SAME_PLACE = ID_ROWS == BLOCK_SIZE &&", "",
          REDUNDANT + "where BLOCK_SIZE divides ROWS it divides TILE_N, and is ID_ROWS"),
    Known("prefill", "shift comparison", "column < HEAD_ELEMENTS", "", GUARDED),
)  # fmt: skip


def reason(row: Row) -> str:
    """Why a row survives; empty if nobody knows."""
    change = f"{row.before} -> {row.after}"
    for known in KNOWN:
        found = (
            re.search(known.kernel, row.kernel)
            and re.search(known.operator, row.operator)
            and known.code in row.code
            and known.change in change
        )
        if found:
            return known.why
    return ""
