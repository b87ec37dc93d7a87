"""Which variant the dispatcher names, on a CPU and on GPUs that are pretended."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.errors import PackageError
from pagegen.runtime.buckets import bucket
from pagegen.runtime.dispatcher import Choice, Dispatcher, ShapeKey
from pagegen.runtime.loader import Ops, load

ROOT = Path(__file__).parents[3]
LLAMA = ROOT / "generated" / "llama3_8b"


class OnGpu:
    """A package as on a GPU that runs `backends`; splits are told apart by their arguments."""

    def __init__(self, ops: Ops, backends: tuple[str, ...]) -> None:
        self.ops, self.backends = ops, backends
        self.asked: list[tuple[int, int]] = []

    def manifest(self) -> dict[str, Any]:
        """The package's own."""
        found: dict[str, Any] = self.ops.manifest()
        return found

    def num_splits(
        self, num_seqs: int, max_seq_len: int, *, device: Any, backend: str, variant: str = ""
    ) -> int:
        """As the package's, without a GPU."""
        if backend not in self.backends:
            raise RuntimeError("no kernel runs on it")
        self.asked.append((num_seqs, max_seq_len))
        return 1 + max_seq_len // (1024 * num_seqs)


def on_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *backends: str
) -> Dispatcher:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    return Dispatcher.for_package(OnGpu(load(LLAMA), backends), device="cuda")


def test_a_cpu_has_torch() -> None:
    dispatcher = Dispatcher.for_package(load(LLAMA))
    assert dispatcher.choose_decode(3, 100).backend == "torch"
    assert dispatcher.choose_decode(3, 100).num_splits == 1
    assert dispatcher.choose_prefill(3, 100, 50).backend == "torch"


def test_hopper_decodes_with_cuda_and_prefills_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = on_gpu(monkeypatch, (9, 0), "cuda", "triton")
    decode = dispatcher.choose_decode(64, 8192)
    assert (decode.backend, decode.variant) == ("cuda", "default")
    prefill = dispatcher.choose_prefill(1, 16384, 16384)
    assert (prefill.backend, prefill.variant, prefill.num_splits) == ("triton", "default", 1)


def test_ampere_prefills_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = on_gpu(monkeypatch, (8, 0), "cuda", "triton")
    assert dispatcher.choose_prefill(1, 16384, 16384).backend == "cuda"


def test_without_cuda_a_lone_sequence_takes_longer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = on_gpu(monkeypatch, (9, 0), "triton")
    assert dispatcher.choose_decode(1, 8192).variant == "n64"
    assert dispatcher.choose_decode(64, 8192).variant == "default"


def test_the_backend_a_package_was_loaded_for_is_the_only_one() -> None:
    assert Dispatcher.for_package(load(LLAMA, "triton")).choose_prefill(1, 1, 1).backend == "triton"
    named = Dispatcher.for_package(load(LLAMA), backend="cuda")
    assert named.choose_prefill(1, 1, 1).backend == "cuda"


def test_every_shape_of_a_bucket_has_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = on_gpu(monkeypatch, (9, 0), "cuda", "triton")
    seen: dict[tuple[int, int], Choice] = {}
    sizes = [1, 2, 7, 16, 17, 18, 19, 63, 64, 65, 250, 256]
    lengths = [0, 1, 100, 1024, 1025, 8192, 8200, 131072, 10**6]
    for num_seqs, length in itertools.product(sizes, lengths):
        choice = dispatcher.choose_decode(num_seqs, length)
        assert seen.setdefault((bucket(num_seqs), bucket(length)), choice) is choice
        assert dispatcher.choose_decode(num_seqs, length) is choice
    package: Any = dispatcher._ops
    asked = len(package.asked)
    dispatcher.choose_decode(64, 8192)
    assert len(package.asked) == asked  # nothing is computed again


def test_splits_are_for_the_largest_shape_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = on_gpu(monkeypatch, (9, 0), "cuda")
    dispatcher.choose_decode(17, 8193)
    package: Any = dispatcher._ops
    assert package.asked[-1] == (18, 9216)


def test_measured_choices_go_first() -> None:
    ops = load(LLAMA)
    fast = Choice("triton", "n64", 7, "measured")
    table = {
        ShapeKey.of("decode", 30, 4000): fast,
        ShapeKey.of("prefill", 1, 2048, 2048): Choice("triton", "m64", 1, "measured"),
    }
    dispatcher = Dispatcher.for_package(ops, table=table)
    assert dispatcher.choose_decode(29, 3900) is fast
    assert dispatcher.choose_decode(29, 5000).backend == "torch"
    assert dispatcher.choose_prefill(1, 2000, 2000).variant == "m64"
    assert ShapeKey.of("decode", 29, 3900).shape() == (30, 4096, 1)


@pytest.mark.parametrize(("backend", "variant"), [("triton", "n65"), ("hip", "default")])
def test_a_measured_variant_that_is_gone_is_refused(backend: str, variant: str) -> None:
    table = {ShapeKey.of("decode", 1, 1): Choice(backend, variant, 1, "")}
    with pytest.raises(PackageError, match="measure llama3_8b again"):
        Dispatcher.for_package(load(LLAMA), table=table)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(PackageError, match="cuda, triton, torch"):
        Dispatcher.for_package(load(LLAMA), backend="metal")
