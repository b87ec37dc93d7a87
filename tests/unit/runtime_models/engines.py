"""Engines for tests: a tiny model, few blocks, and speeds that choose the way of a preemption."""

from __future__ import annotations

import random
from typing import Any

from pagegen.runtime.engine import Engine
from pagegen.runtime.preemption import Costs
from pagegen.runtime.request import Handle, Request
from tests.tiny_models import generate, tiny_model

SWAP = Costs(1, host_bytes_per_s=1e12, prefill_tokens_per_s=1.0)
RECOMPUTE = Costs(10**9, host_bytes_per_s=1.0, prefill_tokens_per_s=1e9)
LENGTHS = (1, 3, 4, 5, 17, 30, 9, 22)
NUM_TOKENS = 12


def engine(ops: Any, model: Any = None, **options: Any) -> Engine:
    """64 blocks of 4 tokens, unless said otherwise."""
    given = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64, "costs": RECOMPUTE}
    return Engine(ops, model if model is not None else tiny_model(), **{**given, **options})


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 97) for _ in range(length)] for length in lengths]


def requests(given: list[list[int]], **fields: Any) -> list[Request]:
    """Greedy and without a stop token, unless said otherwise."""
    return [
        Request(one, **{"max_new_tokens": NUM_TOKENS, "stop_token_ids": (), **fields})
        for one in given
    ]


def expected(given: list[list[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """What transformers says."""
    model = tiny_model()
    return [generate(model, prompt, num_tokens) for prompt in given]


def answers(handles: list[Handle]) -> list[list[int]]:
    """The first answer of each."""
    return [handle.outputs[0].token_ids for handle in handles]


def settle(one: Engine) -> None:
    """The books balance, and no block is held."""
    one.manager.check_integrity()
    assert one.manager.num_available == one.manager.pool.num_usable
    assert one.manager.host.num_free == one.manager.host.num_usable
    assert not one.manager.sequences and not one.scheduler.has_work
    assert not one._branches.sampled and not one._branches.searches
