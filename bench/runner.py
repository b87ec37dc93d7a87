"""Runs cases: prepares every contestant, checks it, times all in turns, and checks again.

It knows no kernel: a contestant is a name and a call. One that fails is a result with a reason.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.cases import Case
from bench.options import Options
from bench.package import Package, attention_setups, find_package, load_package
from bench.peers import Availability, Peer, Run, Setup, add_folder, find_peers
from bench.tensors import CaseTensors, make_reference, make_tensors
from pagegen.runtime.timer import Timing, capture, measure_interleaved

OURS = "pagegen"
MAX_ERROR = 1e-2  # relative, of bf16 results: right ones are near 2e-3

ErrorOf = Callable[[Tensor], float]


@dataclass(frozen=True)
class Contestant:
    """Somebody's way to run a case."""

    name: str  # pagegen, or a peer's
    setup: Setup


@dataclass(frozen=True)
class Result:
    """How a contestant did. No timing: `reason` says why."""

    name: str
    config: str
    timing: Timing | None
    error: float | None  # relative
    reason: str

    @property
    def is_ours(self) -> bool:
        """Whether it is the thing under test."""
        return self.name == OURS


@dataclass(frozen=True)
class Row:
    """A case with all its results."""

    case: Case
    results: tuple[Result, ...]

    def best(self, *, ours: bool) -> Result | None:
        """The fastest result of ours, or of the peers'."""
        timed = [one for one in self.results if one.timing is not None and one.is_ours == ours]
        return min(timed, key=_median, default=None)

    def ratio(self, result: Result) -> float | None:
        """The best peer's time over this result's: above 1, the result is faster."""
        peer = self.best(ours=False)
        if peer is None or result.timing is None:
            return None
        return _median(peer) / _median(result)


def _median(result: Result) -> float:
    return float("inf") if result.timing is None else result.timing.median_us


@dataclass(frozen=True)
class Prepared:
    """A case's inputs are on the device, and so is what is right for it."""

    case: Case
    contestants: tuple[Contestant, ...]
    failures: tuple[Result, ...]
    error_of: ErrorOf


def describe(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


def failure(name: str, config: str, reason: str, error: float | None = None) -> Result:
    """A result without a time."""
    return Result(name, config, None, error, reason)


@dataclass(frozen=True)
class Field:
    """Everybody who may take part: the packages under test and the peers."""

    packages: tuple[Package, ...]
    peers: tuple[tuple[Peer, Availability], ...]


def gather_field(options: Options) -> Field:
    """Load packages and peers. Raises UsageError for a wrong option, not for a missing peer."""
    if options.peers_folder is not None:
        add_folder(options.peers_folder)
    peers = () if options.peer_names is None else tuple(find_peers(options.peer_names))
    return Field(
        packages=tuple(load_package(folder) for folder in options.packages),
        peers=tuple((peer, peer.available()) for peer in peers),
    )


def prepare_attention(case: Case, field: Field, options: Options) -> Prepared:
    """Inputs, reference and contestants of a decode or prefill case, on the GPU."""
    tensors = make_tensors(case, "cuda", options.seed)
    contestants: list[Contestant] = []
    failures: list[Result] = []
    package, reason = find_package(field.packages, case)
    if package is None:
        failures.append(failure(OURS, "", f"no package fits: {reason}"))
    else:
        for setup in attention_setups(package, tensors, options.backends, options.variants):
            contestants.append(Contestant(OURS, setup))
    for peer, availability in field.peers:
        if not availability.ok:
            failures.append(failure(peer.NAME, "", availability.text))
            continue
        setups = _setups_of(peer, tensors)
        contestants += [Contestant(peer.NAME, setup) for setup in setups]
    reference = make_reference(tensors)
    return Prepared(case, tuple(contestants), tuple(failures), reference.error)


def _setups_of(peer: Peer, tensors: CaseTensors) -> tuple[Setup, ...]:
    return peer.decode(tensors) if tensors.case.op == "decode" else peer.prefill(tensors)


class _Heat:
    """One contestant's captured call and the tensor that its replays write."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.out: Tensor | None = None
        self.replay = capture(self._call)

    def _call(self) -> None:
        self.out = self._run()


def _enter(contestant: Contestant, error_of: ErrorOf) -> tuple[_Heat, float]:
    """Prepare, check and capture one contestant. Raises ValueError for a wrong result."""
    run = contestant.setup.prepare()
    run()
    error = error_of(run())  # of the second call: state left by the first must not hurt
    if not error <= MAX_ERROR:
        raise ValueError(f"wrong result, relative error {error:.2e}")
    torch.cuda.synchronize()
    return _Heat(run), error


def run_together(prepared: Sequence[Prepared], repeats: int) -> tuple[Row, ...]:
    """Check and time the contestants of one or more cases, all in turns."""
    heats: dict[str, _Heat] = {}
    results: list[list[Result]] = [list(one.failures) for one in prepared]
    entered: list[tuple[int, Contestant, float, str]] = []
    for index, one in enumerate(prepared):
        for contestant in one.contestants:
            name, config = contestant.name, contestant.setup.config
            try:
                heat, error = _enter(contestant, one.error_of)
            except Exception as problem:  # recorded: one failure must not hide the other rows
                results[index].append(failure(name, config, describe(problem)))
                continue
            key = f"{index} {name} {config}"
            heats[key] = heat
            entered.append((index, contestant, error, key))
    replays = {key: heat.replay for key, heat in heats.items()}
    times = measure_interleaved(replays, repeats=repeats, graph=False) if replays else {}
    for index, contestant, before, key in entered:
        out = heats[key].out
        after = float("inf") if out is None else prepared[index].error_of(out)
        results[index].append(_judge(contestant, times[key], max(before, after)))
    return tuple(
        Row(one.case, tuple(sorted(found, key=_median)))
        for one, found in zip(prepared, results, strict=True)
    )


def _judge(contestant: Contestant, timing: Timing, error: float) -> Result:
    name, config = contestant.name, contestant.setup.config
    if not error <= MAX_ERROR:
        return failure(name, config, f"wrong after replays, relative error {error:.2e}", error)
    return Result(name, config, timing, error, "")


def release() -> None:
    """Give back the memory of a finished case."""
    gc.collect()
    torch.cuda.empty_cache()


def run_attention(
    cases: Sequence[Case], options: Options, report_row: Callable[[Row], None]
) -> tuple[Row, ...]:
    """Run decode or prefill cases one after another, reporting each as it ends."""
    field = gather_field(options)
    rows = []
    for case in cases:
        rows.append(_run_one(partial(prepare_attention, case, field, options), options.repeats))
        report_row(rows[-1])
        release()
    return tuple(rows)


def _run_one(prepare: Callable[[], Prepared], repeats: int) -> Row:
    # Its own frame, so that nothing of the case outlives it.
    return run_together([prepare()], repeats)[0]
