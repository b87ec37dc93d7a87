"""torch.compile and torch.export see through a generated package; direct calls stay direct."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.host_package import Call, import_package, make_call, submodule, write_package
from tests.specimens import specimen

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    write_package(root, specimen(name="traced"))
    write_package(root, specimen(name="traced_rows", lookup="csr"))
    return root


@pytest.fixture
def ops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return import_package(folder / "traced", monkeypatch)


@pytest.fixture
def call() -> Call:
    return make_call()


def whole(function: Any) -> Any:
    """`function` compiled in one graph, or an error."""
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def test_nothing_is_registered_before_it_is_needed(ops: ModuleType, call: Call) -> None:
    ops.decode(*call.decode)
    assert not hasattr(torch.ops.pagegen_traced, "decode")


def test_attention_compiles_in_one_graph_without_registering_first(
    ops: ModuleType, call: Call
) -> None:
    def layer(*arguments: Any) -> Any:
        out, lse = ops.decode(*arguments[:5], return_lse=True, num_splits=2)
        more = ops.prefill(*arguments, max_seqlen_q=1)
        return ops.merge_states(out * 2, lse, more, lse)

    expected = layer(*call.prefill)
    for got, want in zip(whole(layer)(*call.prefill), expected, strict=True):
        assert torch.equal(got, want)


def test_what_a_call_writes_is_written_in_compiled_code_too(ops: ModuleType, call: Call) -> None:
    k = torch.ones(3, 2, 32, dtype=BF16)
    pool = torch.zeros(8, 2, 4, 2, 32, dtype=BF16)
    slots = torch.tensor([0, -1, 9])
    pairs = torch.tensor([[0, 3]])

    def step(pool: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        k_cache, v_cache = pool[:, 0], pool[:, 1]
        ops.write_kv(k, k * 2, k_cache, v_cache, slots)
        ops.copy_blocks(k_cache, v_cache, pairs)
        ops.decode(call.q, k_cache, v_cache, call.block_table, call.seq_lens, out=out)
        ops.decode(
            call.q,
            k_cache,
            v_cache,
            call.block_table,
            call.seq_lens,
            out=(out, lse),
            return_lse=True,
        )
        return out + 1

    def run(function: Any) -> tuple[torch.Tensor, ...]:
        mine, out, lse = pool.clone(), torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(3, 4)
        return function(mine, out, lse), mine, out, lse

    for got, want in zip(run(whole(step)), run(step), strict=True):
        assert torch.equal(got, want)


def test_csr_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = import_package(folder / "traced_rows", monkeypatch)
    call = make_call(specimen(lookup="csr"))
    compiled = whole(lambda *a: (ops.decode(*a[:5]), ops.prefill(*a)))
    got = compiled(*call.prefill)
    assert torch.equal(got[0], ops.decode(*call.decode))
    assert torch.equal(got[1], ops.prefill(*call.prefill))


def test_export_keeps_the_operator_and_its_dynamic_batch(ops: ModuleType, call: Call) -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, table: Any, lens: Any) -> Any:
            return ops.decode(q, k, v, table, lens)

    batch = torch.export.Dim("num_seqs", min=2, max=64)
    shapes = ({0: batch}, None, None, {0: batch}, {0: batch})
    program = torch.export.export(Layer(), call.decode, dynamic_shapes=shapes)
    assert "pagegen_traced.decode" in program.graph_module.code
    two = replace(call, q=call.q[:2], block_table=call.block_table[:2], seq_lens=call.seq_lens[:2])
    assert torch.equal(program.module()(*two.decode), ops.decode(*two.decode))


def test_the_operators_pass_torchs_own_checks(ops: ModuleType, call: Call) -> None:
    operators = getattr(torch.ops, ops.register())
    k = torch.ones(3, 2, 32, dtype=BF16)
    out, lse = torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(3, 4)
    caches = call.k_cache, call.v_cache
    for name, arguments in (
        ("decode", call.decode),
        ("decode_lse", call.decode),
        ("decode_out", (out, lse, *call.decode)),
        ("prefill", call.prefill),
        ("prefill_lse", call.prefill),
        ("prefill_out", (out, None, *call.prefill)),
        ("write_kv", (k, k, *caches, torch.arange(3))),
        ("merge_states", (out, lse, out.clone(), lse.clone())),
        ("copy_blocks", (*caches, torch.tensor([[0, 1]]))),
    ):
        tests = ("test_schema", "test_faketensor")
        torch.library.opcheck(getattr(operators, name), arguments, test_utils=tests)


def test_copies_share_a_namespace_and_strangers_do_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = import_package(folder / "traced", monkeypatch)
    assert first.register() == first.register() == "pagegen_traced"
    copied = Path(shutil.copytree(folder / "traced", tmp_path / "vendored_copy"))
    assert import_package(copied, monkeypatch).register() == "pagegen_traced"
    other = write_package(tmp_path / "elsewhere", specimen(name="traced", block_size=8))
    shutil.move(other, tmp_path / "stranger")
    stranger = import_package(tmp_path / "stranger", monkeypatch)
    digest = submodule(stranger, "spec").DIGEST
    assert stranger.register() == stranger.register() == f"pagegen_traced_{digest[:8]}"
    call = make_call()
    with pytest.raises(first.ArgumentError):
        torch.ops.pagegen_traced.decode(call.q[:2], *call.decode[1:])
