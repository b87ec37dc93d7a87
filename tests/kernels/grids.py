"""How many thread blocks each kernel is launched with, as its host code counts them.

The constants have the same names in both backends, and so do the formulas.
"""

from __future__ import annotations

from math import ceil

from pagegen.plan import Plan


def decode_grid(plan: Plan, num_seqs: int, num_splits: int) -> int:
    """((seq * num_splits + split) * GROUP_TILES + group_tile) * NUM_KV_HEADS + kv_head."""
    return num_seqs * num_splits * plan.constant("GROUP_TILES") * plan.constant("NUM_KV_HEADS")


def query_tiles(plan: Plan, num_tokens: int, num_seqs: int) -> int:
    """Query tiles that are enough however the tokens are shared out among the sequences."""
    return num_tokens * plan.constant("GROUP") // plan.constant("TILE_M") + num_seqs


def prefill_grid(plan: Plan, num_tokens: int, num_seqs: int) -> int:
    """q_tile * NUM_KV_HEADS + kv_head; nothing where there is no query."""
    if num_tokens == 0:
        return 0
    return query_tiles(plan, num_tokens, num_seqs) * plan.constant("NUM_KV_HEADS")


def write_kv_grid(plan: Plan, num_tokens: int) -> int:
    """One block for each TILE_TOKENS tokens."""
    return ceil(num_tokens / plan.constant("TILE_TOKENS"))


def merge_states_grid(plan: Plan, num_tokens: int) -> int:
    """One block for each TILE_ROWS rows (token, head)."""
    return ceil(num_tokens * plan.constant("NUM_Q_HEADS") / plan.constant("TILE_ROWS"))


def copy_blocks_grid(plan: Plan, num_pairs: int) -> int:
    """pair * PARTS + part."""
    return num_pairs * plan.constant("PARTS")
