"""The engine on a real GPU: graphs say what eager steps say, and both what the CPU says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pagegen
from pagegen.build import Package, build
from pagegen.emit import emit, emit_package
from pagegen.lower import lower
from pagegen.runtime.device import device as device_facts
from pagegen.runtime.engine import Engine
from pagegen.runtime.preemption import Costs
from pagegen.runtime.request import BeamParams, Handle, Request
from pagegen.runtime.sampling_params import SamplingParams
from tests.specimens import specimen
from tests.tiny_models import tiny_model
from tests.unit.runtime_models.engines import prompts, settle

LENGTHS = (1, 3, 16, 17, 40, 31, 64, 5, 90)
NUM_TOKENS = 24
SWAP = Costs(1, host_bytes_per_s=1e12, prefill_tokens_per_s=1.0)


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A package for tiny_model() with heads of 32 in bf16, built for the GPU at hand."""
    facts = device_facts()
    arch = "sm_90a" if facts.capability == (9, 0) else facts.arch
    spec = specimen(archs=(arch,), name="engine_on_gpu", block_size=16)
    plans = lower(spec)
    kernels = tuple(emit(plan, spec.file_name) for plan in plans)
    package = Package(spec, plans, kernels, emit_package(spec, plans, kernels))
    folder: Path = build(package, tmp_path_factory.mktemp("packages")).folder
    loaded = pagegen.load(folder)
    loaded.warm_up()
    return loaded


def engine(ops: Any, device: str = "cuda", **options: Any) -> Engine:
    model = tiny_model(head_dim=32).to(device, torch.bfloat16)
    given = {"num_blocks": 128, "max_num_seqs": 12, "max_num_batched_tokens": 128}
    return Engine(ops, model, **{**given, **options})


def wanted(**fields: Any) -> list[Request]:
    return [
        Request(one, **{"max_new_tokens": NUM_TOKENS, "stop_token_ids": (), **fields})
        for one in prompts(LENGTHS)
    ]


def texts(handles: list[Handle]) -> list[list[list[int]]]:
    return [[output.token_ids for output in handle.outputs] for handle in handles]


def agreement(some: list[list[list[int]]], others: list[list[list[int]]]) -> float:
    """Share of tokens before two texts part: bf16 sums round differently in other shapes."""
    same, total = 0, 0
    for one, other in zip(some, others, strict=True):
        for text, text_of_other in zip(one, other, strict=True):
            pairs = [a == b for a, b in zip(text, text_of_other, strict=True)]
            same += pairs.index(False) if False in pairs else len(pairs)
            total += len(pairs)
    return same / total


def test_graphs_say_what_eager_steps_and_the_cpu_say(ops: Any) -> None:
    graphs, eager = engine(ops), engine(ops, graphs=False)
    cpu = engine(ops, "cpu", backend="torch")
    found = texts(graphs.generate(wanted()))
    assert graphs.executor.graphs is not None and graphs.executor.graphs._graphs
    assert eager.executor.graphs is None
    assert agreement(found, texts(eager.generate(wanted()))) > 0.9
    assert agreement(found, texts(cpu.generate(wanted()))) > 0.8
    again = texts(graphs.generate(wanted()))
    assert agreement(found, again) > 0.9
    settle(graphs)


def test_graphs_captured_beforehand_are_all_that_is_needed(ops: Any) -> None:
    one = engine(ops)
    one.warm_up()
    assert one.executor.graphs is not None
    before = len(one.executor.graphs._graphs)
    found = texts(one.generate(wanted()))
    assert len(one.executor.graphs._graphs) == before
    assert agreement(found, texts(engine(ops, graphs=False).generate(wanted()))) > 0.9


def test_decode_steps_wait_only_for_their_tokens(ops: Any) -> None:
    one = engine(ops)
    one.warm_up()
    for request in wanted():
        one.submit(request)
    while any(job.num_to_compute > 1 for job in one.scheduler.running) or one.scheduler.waiting:
        one.step()
    step = one.scheduler.schedule()
    torch.cuda.set_sync_debug_mode("error")
    try:
        one.executor.move(step)
        logits = one.executor.run(step)
        tokens = logits.argmax(-1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    jobs = [chunk.job for chunk in step.chunks]
    one.scheduler.update(step, dict(zip(jobs, tokens.tolist(), strict=True)))


def test_preemption_by_swap_seeds_and_beams(ops: Any) -> None:
    given = [
        *wanted(sampling=SamplingParams(temperature=1.0, top_p=0.9, seed=5), n=2),
        *wanted(beam=BeamParams(3), n=3)[:3],
    ]
    calm = texts(engine(ops).generate(given))
    tight = engine(ops, num_blocks=24, num_host_blocks=128, costs=SWAP)
    assert agreement(texts(tight.generate(given)), calm) > 0.7
    assert tight.manager.counters.swapped_in_blocks > 0
    settle(tight)


def test_memory_and_speeds_are_measured(ops: Any) -> None:
    one = engine(ops, num_blocks=None, memory_fraction=0.5, num_host_blocks=64)
    free, total = torch.cuda.mem_get_info()
    assert 0.4 < 1 - free / total < 0.6
    assert one.scheduler.costs.host_bytes_per_s > 1e8
    assert one.scheduler.costs.prefill_tokens_per_s > 100
