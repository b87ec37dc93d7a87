"""The cache's tensors: what is written is read back, by layer, through copies and swaps."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from pagegen.errors import CacheError
from pagegen.runtime.kv_cache import KvCache, block_bytes, device_budget_bytes, num_blocks_in
from pagegen.runtime.loader import Ops
from pagegen.runtime.transfer import Transfer, runs_of
from tests.tiny_models import tiny_package

LAYERS, BLOCKS, HOST_BLOCKS = 3, 10, 6


@pytest.fixture(scope="module", params=["NHD", "HND"])
def ops(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Ops:
    """Values wider than keys, so that nothing can be mistaken for the other."""
    changes = {"name": f"wide_{request.param.lower()}", "layout": request.param, "head_dim_v": 24}
    return tiny_package(tmp_path_factory.mktemp("packages"), **changes)


def filled(ops: Ops) -> KvCache:
    """Every block holds 100 * layer + its id, and its values are negative."""
    cache = KvCache(ops, LAYERS, BLOCKS, num_host_blocks=HOST_BLOCKS)
    for layer in range(LAYERS):
        owner = 100 * layer + torch.arange(BLOCKS, dtype=torch.float32).view(-1, 1, 1, 1)
        cache.k[layer].copy_(owner.expand_as(cache.k[layer]))
        cache.v[layer].copy_(-owner.expand_as(cache.v[layer]))
    return cache


def contents(cache: KvCache) -> list[int]:
    """Whose each block is, after checking that all of it is."""
    owners = []
    for block in range(BLOCKS):
        owner = int(cache.k[0][block].flatten()[0])
        for layer in range(LAYERS):
            assert (cache.k[layer][block] == 100 * layer + owner).all()
            assert (cache.v[layer][block] == -100 * layer - owner).all()
        owners.append(owner)
    return owners


def test_layers_share_no_element_and_leave_none_out(ops: Ops) -> None:
    cache = filled(ops)
    assert contents(cache) == list(range(BLOCKS))
    assert cache.pool.nbytes == BLOCKS * cache.block_bytes
    parts = sum(cache.k[layer].numel() + cache.v[layer].numel() for layer in range(LAYERS))
    assert parts == cache.pool.numel()
    axes = (4, 2) if cache.facts.layout == "NHD" else (2, 4)
    assert cache.k[0].shape == (BLOCKS, *axes, 16)
    assert cache.v[0].shape == (BLOCKS, *axes, 24)


def test_the_package_writes_and_reads_its_layer(ops: Ops) -> None:
    cache = KvCache(ops, LAYERS, BLOCKS)
    cache.pool.fill_(float("nan"))
    k, v = torch.randn(5, 2, 16), torch.randn(5, 2, 24)
    slots = torch.tensor([8, 9, 10, 11, 28])
    ops.write_kv(k, v, cache.k[1], cache.v[1], slots)
    table = torch.tensor([[2, 7]], dtype=torch.int32)
    q = torch.randn(1, 4, 16)
    out = ops.decode(q, cache.k[1], cache.v[1], table, torch.tensor([5], dtype=torch.int32))
    scores = torch.einsum("hgd,thd->hgt", q.view(2, 2, 16), k) / 4.0
    wanted = torch.einsum("hgt,thd->hgd", scores.softmax(-1), v).reshape(1, 4, 24)
    torch.testing.assert_close(out, wanted)
    assert cache.k[0].isnan().all() and cache.v[2].isnan().all()


def test_copy_blocks_copies_every_layer(ops: Ops) -> None:
    cache = filled(ops)
    cache.copy_blocks([(3, 0), (3, 9), (5, 1)])
    assert contents(cache) == [3, 5, 2, 3, 4, 5, 6, 7, 8, 3]
    cache.copy_blocks([])
    assert contents(cache) == [3, 5, 2, 3, 4, 5, 6, 7, 8, 3]


def test_swapped_blocks_come_back_elsewhere(ops: Ops) -> None:
    cache = filled(ops)
    out = cache.swap_out([(4, 0), (5, 1), (1, 5), (7, 3)])
    assert out.done()
    cache.pool.fill_(float("nan"))
    for layer in range(LAYERS):
        owner = 100 * layer + torch.arange(BLOCKS, dtype=torch.float32).view(-1, 1, 1, 1)
        cache.k[layer].copy_(owner.expand_as(cache.k[layer]))
        cache.v[layer].copy_(-owner.expand_as(cache.v[layer]))
    cache.swap_in([(9, 0), (8, 1), (0, 5), (2, 3)]).join()
    assert contents(cache) == [1, 1, 7, 3, 4, 5, 6, 7, 5, 4]


def test_any_sequence_of_swaps_and_copies_keeps_contents(ops: Ops) -> None:
    rng = random.Random(0)
    cache = filled(ops)
    device, host = list(range(BLOCKS)), [-1] * HOST_BLOCKS
    for _ in range(60):
        kind = rng.choice(["out", "in", "copy"])
        count = rng.randint(1, 5)
        blocks, others = rng.sample(range(BLOCKS), count), rng.sample(range(HOST_BLOCKS), count)
        if kind == "copy":
            target = rng.choice([b for b in range(BLOCKS) if b not in blocks[1:]])
            pairs = [(blocks[0], target)] if target != blocks[0] else []
            cache.copy_blocks(pairs)
            for source, to in pairs:
                device[to] = device[source]
            continue
        pairs = list(zip(blocks, others, strict=True))
        if kind == "out":
            cache.swap_out(pairs)
            for block, place in pairs:
                host[place] = device[block]
        else:
            pairs = [(block, place) for block, place in pairs if host[place] >= 0]
            cache.swap_in(pairs)
            for block, place in pairs:
                device[block] = host[place]
        assert contents(cache) == device


def test_runs_are_consecutive_on_both_sides() -> None:
    pairs = np.array([(7, 1), (3, 4), (4, 5), (5, 6), (8, 3), (6, 0)])
    assert runs_of(pairs) == [(3, 4, 3), (6, 0, 2), (8, 3, 1)]


def test_a_transfer_without_an_event_has_ended() -> None:
    assert Transfer(None).done()
    Transfer(None).join()


@pytest.mark.parametrize(
    ("call", "pairs", "message"),
    [
        ("copy_blocks", [(0, 10)], "no block 10"),
        ("copy_blocks", [(-1, 1)], "no block -1"),
        ("copy_blocks", [(0, 1), (1, 2)], "source and destination"),
        ("copy_blocks", [(0, 2), (1, 2)], "block 2 is in two pairs"),
        ("swap_out", [(0, 6)], "no host block 6"),
        ("swap_in", [(1, 0), (1, 2)], "block 1 is in two pairs"),
    ],
)
def test_pairs_that_name_no_block_are_refused(
    ops: Ops, call: str, pairs: list[tuple[int, int]], message: str
) -> None:
    cache = filled(ops)
    with pytest.raises(CacheError, match=message):
        getattr(cache, call)(pairs)
    assert contents(cache) == list(range(BLOCKS))


def test_budgets(ops: Ops) -> None:
    facts = KvCache(ops, 1, 1).facts
    each = block_bytes(facts, LAYERS)
    assert each == LAYERS * 4 * 2 * (16 + 24) * 4
    assert num_blocks_in(10 * each + 1, facts, LAYERS) == 10
    with pytest.raises(CacheError, match=f"one block of {each} bytes"):
        num_blocks_in(each - 1, facts, LAYERS)
    with pytest.raises(CacheError, match="more than 0"):
        device_budget_bytes("cuda", 1.5)


@pytest.mark.parametrize("counts", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_counts_that_make_no_cache_are_refused(ops: Ops, counts: tuple[int, int, int]) -> None:
    layers, blocks, host_blocks = counts
    with pytest.raises(CacheError, match="at least 1 layer"):
        KvCache(ops, layers, blocks, num_host_blocks=host_blocks)


def test_a_swap_without_a_host_pool_is_refused(ops: Ops) -> None:
    with pytest.raises(CacheError, match="the pool is empty"):
        KvCache(ops, LAYERS, BLOCKS).swap_out([(0, 0)])


def test_more_memory_than_there_is_is_refused(ops: Ops) -> None:
    with pytest.raises(CacheError, match="no memory"):
        KvCache(ops, LAYERS, 10**12)
