"""The runtime's tensors on a real GPU: nothing waits, nothing overtakes, and graphs replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import pagegen
from pagegen.build import Package, build
from pagegen.emit import emit, emit_package
from pagegen.lower import lower
from pagegen.runtime.attention import PagedAttention
from pagegen.runtime.batch import Padding, SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.device import device as device_facts
from pagegen.runtime.dispatcher import Dispatcher
from pagegen.runtime.kv_cache import KvCache, device_budget_bytes
from pagegen.runtime.models.paged_model import PagedModel
from pagegen.runtime.sampler import sample
from pagegen.runtime.sampling_params import SamplingParams
from tests.specimens import specimen
from tests.tiny_models import tiny_model

BLOCKS, BLOCK_SIZE, ROWS = 64, 16, 8


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A package for tiny_model() with heads of 32, built for the GPU at hand."""
    facts = device_facts()
    arch = "sm_90a" if facts.capability == (9, 0) else facts.arch
    spec = specimen(archs=(arch,), name="runtime_on_gpu", block_size=BLOCK_SIZE)
    plans = lower(spec)
    kernels = tuple(emit(plan, spec.file_name) for plan in plans)
    package = Package(spec, plans, kernels, emit_package(spec, plans, kernels))
    loaded = pagegen.load(build(package, tmp_path_factory.mktemp("packages")).folder)
    loaded.warm_up()
    return loaded


def builder() -> BatchBuilder:
    return BatchBuilder(
        block_size=BLOCK_SIZE,
        max_num_seqs=ROWS,
        max_num_tokens=256,
        max_model_len=256,
        device="cuda",
    )


def keep_busy(milliseconds: int = 100) -> None:
    cuda: Any = torch.cuda
    cuda._sleep(milliseconds * 2_000_000)  # clock ticks


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the GPU is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_that_is_prepared_early_does_not_change_the_one_before() -> None:
    make = builder()
    make.build([SequenceInput(0, [1], 0, [1])])
    torch.cuda.synchronize()
    seen = []
    keep_busy()
    for number in range(20):
        batch = make.build(
            [SequenceInput(0, [number], 3, [number + 1]), SequenceInput(1, [7], 0, [number])]
        )
        assert batch.decode is not None
        seen.append(
            (
                batch.token_ids.clone(),
                batch.decode.block_table[:, 0].clone(),
                batch.slot_mapping.clone(),
            )
        )
    for number, (tokens, blocks, slots) in enumerate(seen):
        assert tokens.tolist() == [number, 7]
        assert blocks.tolist() == [number + 1, number]
        assert slots.tolist() == [(number + 1) * BLOCK_SIZE + 3, number * BLOCK_SIZE]


def test_swaps_run_beside_the_stream_and_not_before_what_they_copy(ops: Any) -> None:
    cache = KvCache(ops, 2, BLOCKS, device="cuda", num_host_blocks=BLOCKS)
    assert cache.host_pool.is_pinned()
    cache.pool.zero_()
    torch.cuda.synchronize()
    pairs = [(block, BLOCKS - 1 - block) for block in range(BLOCKS)]
    with no_waiting():
        keep_busy()
        cache.pool.fill_(3.0)
        out = cache.swap_out(pairs)
        out.join()
        cache.pool.fill_(5.0)
        back = cache.swap_in(pairs[::2])
    assert not out.done()
    back.join()
    copy = cache.pool.clone()
    torch.cuda.synchronize()
    assert out.done() and back.done()
    assert (copy[::2] == 3.0).all() and (copy[1::2] == 5.0).all()


def test_copy_blocks_is_one_launch_for_all_layers(ops: Any) -> None:
    cache = KvCache(ops, 3, BLOCKS, device="cuda")
    cache.pool.copy_(torch.arange(BLOCKS, device="cuda").view(-1, 1, 1).expand_as(cache.pool))
    with no_waiting():
        cache.copy_blocks([(3, 60), (5, 1)])
    owners = cache.pool.float().flatten(1)
    assert owners[:, 0].tolist() == [0, 5, *range(2, 60), 3, 61, 62, 63]
    assert (owners == owners[:, :1]).all()


def test_a_budget_is_what_is_left_of_the_memory() -> None:
    some = device_budget_bytes("cuda", 0.5)
    more = device_budget_bytes("cuda", 0.6)
    total = device_facts().memory_bytes
    assert abs((more - some) / total - 0.1) < 0.02


def test_steps_wait_for_nothing_and_a_graph_gives_what_eager_gives(ops: Any) -> None:
    model = tiny_model(head_dim=32).to("cuda", torch.bfloat16)
    paged = PagedModel(model, ops)
    cache = KvCache(ops, paged.num_layers, BLOCKS, device="cuda")
    cache.pool.fill_(float("nan"))
    attention = PagedAttention(ops, cache, Dispatcher.for_package(ops, device="cuda"))
    make = builder()
    lengths = [5, 17, 40]
    prompts = [[3 + (7 * i + j) % 90 for j in range(n)] for i, n in enumerate(lengths)]
    inputs = [
        SequenceInput(row, prompt, 0, range(8 * row, 8 * row + 8))
        for row, prompt in enumerate(prompts)
    ]
    paged.forward(attention.begin(make.build(inputs)))  # what is loaded or built at first
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.9),
    ]
    with no_waiting():
        logits = paged.forward(attention.begin(make.build(inputs)))
        tokens = sample(logits, params, [0, 0, 0]).token_ids
    steps = [
        SequenceInput(row, [token], length)
        for row, (token, length) in enumerate(zip(tokens.tolist(), lengths, strict=True))
    ]
    eager = paged.forward(attention.begin(make.build(steps))).clone()

    padding = Padding(num_seqs=4, max_seq_len=128)
    step = attention.begin(make.build([], padding=padding))
    paged.forward(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = paged.forward(step)
    for _ in range(3):
        with no_waiting():
            make.build(steps, padding=padding)
            graph.replay()
        torch.testing.assert_close(captured[:3], eager, rtol=0.05, atol=0.05)
        make.build([], padding=padding)
        graph.replay()
    assert cache.pool[24:].isnan().all()
