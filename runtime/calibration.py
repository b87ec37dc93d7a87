"""What an engine measures of its machine before it serves: memory, copy speed, prefill speed.

It waits for the device, and writes over whatever the cache holds.
"""

from __future__ import annotations

import time

import torch

from pagegen.runtime.attention import PagedAttention
from pagegen.runtime.batch import SequenceInput
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.dispatcher import Dispatcher
from pagegen.runtime.executor import Executor
from pagegen.runtime.kv_cache import KvCache, block_bytes, device_budget_bytes, num_blocks_in
from pagegen.runtime.models.paged_model import PagedModel
from pagegen.runtime.preemption import Costs
from pagegen.runtime.sampler import sample
from pagegen.runtime.sampling_params import SamplingParams

CPU_CACHE_BYTES = 1 << 30  # where nobody says how much
CPU_TOKENS = 64  # of the timed prompt on a CPU, which takes seconds for thousands
COPIED_BYTES = 256 << 20


def num_blocks_left(
    model: PagedModel, ops: object, dispatcher: Dispatcher, builder: BatchBuilder, fraction: float
) -> int:
    """Blocks for which a device has memory once `fraction` of it is in use.

    On a GPU the largest step runs once over a small cache. Raises CacheError if nothing is left.
    """
    size = builder.block_size
    if builder.device.type != "cuda":
        facts = KvCache(ops, model.num_layers, 1).facts
        return max(2, num_blocks_in(CPU_CACHE_BYTES, facts, model.num_layers))
    each = max(1, min(builder.max_num_tokens // builder.max_num_seqs, model.max_model_len))
    columns = -(-each // size)
    cache = KvCache(ops, model.num_layers, columns * builder.max_num_seqs, device=builder.device)
    inputs = [
        SequenceInput(row, [0] * each, 0, range(row * columns, (row + 1) * columns))
        for row in range(builder.max_num_seqs)
    ]
    attention = PagedAttention(ops, cache, dispatcher)
    logits = model.forward(attention.begin(builder.build(inputs)))
    sample(logits, [SamplingParams(seed=0, top_p=0.9)] * len(inputs), [0] * len(inputs))
    torch.cuda.synchronize(builder.device)
    facts = cache.facts
    del logits, attention, cache
    return num_blocks_in(device_budget_bytes(builder.device, fraction), facts, model.num_layers)


def measured_costs(executor: Executor) -> Costs:
    """The speeds of this machine that decide between swap and recompute."""
    cache = executor.cache
    return Costs(
        block_bytes(cache.facts, cache.num_layers),
        host_bytes_per_s=_host_bytes_per_s(cache),
        prefill_tokens_per_s=_prefill_tokens_per_s(executor),
    )


def _host_bytes_per_s(cache: KvCache) -> float:
    most = max(1, COPIED_BYTES // cache.block_bytes)
    count = min(cache.num_blocks, cache.num_host_blocks, most)
    pairs = [(block, block) for block in range(count)]
    seconds = _seconds(lambda: cache.swap_out(pairs).join(), cache.device)
    return count * cache.block_bytes / seconds


def _prefill_tokens_per_s(executor: Executor) -> float:
    builder = executor.builder
    most = min(builder.max_num_tokens, builder.max_model_len)
    if builder.device.type == "cpu":
        most = min(most, CPU_TOKENS)
    count = min(most, executor.cache.num_blocks * builder.block_size)
    blocks = range(-(-count // builder.block_size))
    one = SequenceInput(0, [0] * count, 0, blocks)

    def run() -> None:
        executor.model.forward(executor.attention.begin(builder.build([one])))

    return count / _seconds(run, builder.device)


def _seconds(call: object, device: torch.device) -> float:
    """The second time of two, the device's work included."""
    assert callable(call)
    elapsed = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - begin
    return max(elapsed, 1e-9)
