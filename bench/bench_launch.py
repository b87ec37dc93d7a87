"""What does a decode call with out= cost the host, next to a bare CuPy launch of the same kernel?

The bare launch goes through CuPy's public kernel object with the same grid and the same arguments;
"driver" is the call under it, which nothing can undercut. The aim is at most 1.6 bare launches.
python -m bench.bench_launch --package generated/llama3_8b
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from bench import report
from bench.cases import DECODE, select
from bench.errors import run_script
from bench.options import parse_options
from bench.package import Package, find_package, load_package
from bench.runner import MAX_ERROR, describe
from bench.tensors import CaseTensors, make_reference, make_tensors
from pagegen.runtime.timer import Timing, measure_host

AIM = 1.6
OURS, BARE, DRIVER = "decode(out=)", "bare CuPy launch", "driver"
DEFAULT_ROWS = ("1x1k",)  # the device must be faster than the host

Call = Callable[[], Any]


def our_call(package: Package, tensors: CaseTensors, backend: str, variant: str) -> Call:
    """A decode call as a runtime makes it."""
    return partial(
        package.ops.decode,
        tensors.q,
        package.cache(tensors.k_cache),
        package.cache(tensors.v_cache),
        tensors.block_table,
        tensors.seq_lens,
        out=tensors.new_out(),
        backend=backend,
        variant=variant,
    )


def latest_launch(package: Package) -> Any:
    """What the latest decode call prepared; internal to the package, and read only here."""
    launch = import_module(f"{package.ops.__name__}._decode_first").MEMO.recent
    if not hasattr(launch, "start"):
        raise ValueError("the decode call launched no cubin; bench_launch needs one")
    return launch


def bare_calls(package: Package, call: Call) -> dict[str, Call]:
    """Launches of the kernel that `call` just launched, with nothing around them."""
    import numpy as np

    call()
    launch = latest_launch(package)
    start = launch.start
    while not hasattr(start, "args") or len(start.args) < 8:
        start = start.args[1]  # on machines of several GPUs, wrapped to choose the device
    handle, grid, threads, shared = (start.args[i] for i in (0, 1, 4, 7))
    frame = launch.frames[-1]
    image = bytes(frame[0])
    loaded = import_module(f"{package.ops.__name__}._kernels").LOADED
    kernel = next(one for one in loaded._loaded.values() if one.handle == handle)
    function = kernel.module.get_function(kernel.artifact.entry)
    params = kernel.entry.params
    if kernel.entry.backend == "triton":
        arguments = _fields(launch, image, params)
    else:
        # One struct by value, as CuPy takes it: a NumPy scalar of that many bytes.
        size = _struct_size(params)
        arguments = (np.frombuffer(image[:size], dtype=np.dtype((np.void, size)))[0],)
    return {
        BARE: partial(function, (grid, 1, 1), (threads, 1, 1), arguments, shared_mem=shared),
        DRIVER: partial(launch.start, launch.stream(), frame[1], 0),
    }


CTYPES = {
    "ptr": ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
}


def _struct_size(params: Any) -> int:
    fields = [(f"f{i}", CTYPES[kind]) for i, (_, kind, _) in enumerate(params)]
    layout = type("Layout", (ctypes.Structure,), {"_fields_": fields})
    return ctypes.sizeof(layout)


def _fields(launch: Any, image: bytes, params: Any) -> tuple[Any, ...]:
    """The values of a packed argument buffer, and Triton's two null scratch pointers."""
    import numpy as np

    kinds = {"ptr": np.uint64, "i64": np.int64, "i32": np.int32, "f32": np.float32}
    starts = launch._fields
    values = [
        np.frombuffer(image, dtype=kinds[kind], count=1, offset=start)[0]
        for start, (_, kind, _) in zip(starts, params, strict=False)
    ]
    return (*values, *(np.uint64(0) for _ in range(len(starts) - len(params))))


def check(call: Call, tensors: CaseTensors) -> float:
    """The relative error of what the call writes. Raises ValueError when it is wrong."""
    error = make_reference(tensors).error(call())
    if not error <= MAX_ERROR:
        raise ValueError(f"wrong result, relative error {error:.2e}")
    return error


def measure_variant(
    package: Package, tensors: CaseTensors, choice: tuple[str, str], repeats: int
) -> dict[str, Any]:
    """One variant's host times; a failure is recorded, so that the others still run."""
    found: dict[str, Any] = {"case": f"{tensors.case.name} {'/'.join(choice)}"}
    try:
        call = our_call(package, tensors, *choice)
        found["error"] = check(call, tensors)
        times = measure_host({OURS: call, **bare_calls(package, call)}, repeats=repeats)
    except Exception as problem:
        found["reason"] = describe(problem)
        print(f"{found['case']}: failed: {found['reason']}", flush=True)
        return found
    print(_line(found["case"], times), flush=True)
    return {**found, "host": {name: asdict(timing) for name, timing in times.items()}}


def main() -> None:
    """Measure every variant of each backend."""
    options = parse_options(__doc__ or "")
    packages = [load_package(folder) for folder in options.packages]
    found: list[dict[str, Any]] = []
    for case in select(DECODE, options.rows or DEFAULT_ROWS):
        package, reason = find_package(packages, case)
        if package is None:
            print(f"{case.name}: no package fits: {reason}")
            found.append({"case": case.name, "reason": reason})
            continue
        tensors = make_tensors(case, "cuda", options.seed)
        for choice in package.variants("decode", options.backends, options.variants):
            found.append(measure_variant(package, tensors, choice, options.repeats))
    environment = report.read_environment(options.commit)
    data = {"environment": asdict(environment), "rows": found}
    print(f"written to {report.write_json(data, 'launch', options)}")


def _line(label: str, times: dict[str, Timing]) -> str:
    parts = [f"{name} {timing.median_us:.1f} us" for name, timing in times.items()]
    ratio = times[OURS].median_us / times[BARE].median_us
    return f"{label:<28} | {' | '.join(parts)} | {ratio:.2f}x bare (aim {AIM})"


if __name__ == "__main__":
    run_script(main)
