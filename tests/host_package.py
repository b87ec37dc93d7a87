"""A whole generated package written to a folder and imported, with or without a pretended GPU.

It knows no compiler: cubins are bytes that nothing runs, and launches are recorded, not made.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pagegen.emit import Source, emit, emit_package
from pagegen.lower import lower
from pagegen.spec import Spec
from tests.specimens import specimen

PRETENDED_MODULES = ("decode_first", "prefill", "write_kv", "merge_states", "copy_blocks")


def write_package(folder: Path, spec: Spec) -> Path:
    """Emit `spec` into folder/<name>, without cubins; returns that path."""
    plans = lower(spec)
    kernels = tuple(emit(plan, spec.file_name) for plan in plans)
    for source in (*kernels, *emit_package(spec, plans, kernels)):
        write(folder / spec.name, source)
    return folder / spec.name


def write(folder: Path, source: Source) -> None:
    """One file of a package."""
    path = folder / source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.text, encoding="utf-8")


def import_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a folder as a vendored package: by its name, from its parent folder."""
    for name in [name for name in sys.modules if name.split(".")[0] == path.name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(path.parent))
    return importlib.import_module(path.name)


def submodule(package: ModuleType, name: str) -> Any:
    """A private module of a package."""
    return importlib.import_module(f"._{name}", package.__name__)


def entry_of(package: ModuleType, backend: str = "cuda") -> Any:
    """The manifest's row of decode's default variant."""
    return submodule(package, "package").entries()["decode", backend, "default"]


def add_cubins(path: Path, arch: str = "sm_90", **changes: Any) -> None:
    """Pretend that every kernel was compiled for `arch`; `changes` edit each row."""
    rows = []
    file = path / "cubin" / "artifacts.json"
    if file.is_file():
        rows = json.loads(file.read_text())["artifacts"]
    for kernel in json.loads((path / "manifest.json").read_text())["kernels"]:
        if kernel["backend"] == "torch":
            continue
        cubin = f"cubin/{kernel['symbol']}.{arch}.cubin"
        image = f"{kernel['symbol']} {arch}".encode()
        (path / "cubin").mkdir(exist_ok=True)
        (path / cubin).write_bytes(image)
        rows.append(
            {
                "entry": kernel["symbol"],
                "arch": arch,
                "cubin": cubin,
                "digest": hashlib.sha256(image).hexdigest(),
                "source_digest": kernel["source_digest"],
                "toolkit": "nvrtc 13.5",
                "driver_cuda": "13.0",
                "num_warps": 4,
                "dynamic_smem_bytes": 1024,
                "ctas_per_sm": 2,
                **changes,
            }
        )
    file.write_text(json.dumps({"format": 1, "artifacts": rows}))


@dataclass
class Launched:
    """One recorded launch, with its arguments by name."""

    grid: int
    threads: int
    smem: int
    stream: int
    arguments: dict[str, int | float]


@dataclass
class PretendedGpu:
    """Stands for CuPy's driver: records launches of a package's kernels on CPU tensors."""

    package: ModuleType
    backend: str = "cuda"
    slots: int = 264  # thread blocks at once
    launches: list[Launched] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)  # index: entry
    errors: list[Exception] = field(default_factory=list)  # raised by the next launches

    def choose(
        self, op: str, device: torch.device, backend: str | None, variant: str | None
    ) -> Any:
        """In place of the package's own choice."""
        packaged = submodule(self.package, "package")
        entry = packaged.entries()[op, backend or self.backend, variant or "default"]
        artifact = packaged.artifacts()[entry.symbol][0]
        return submodule(self.package, "backends").Choice(entry, artifact)

    def load(self, choice: Any, device: torch.device) -> Any:
        """In place of loading a cubin."""
        self.handles.append(choice.entry)
        kernels = submodule(self.package, "kernels")
        return kernels.Kernel(choice.entry, choice.artifact, 0, len(self.handles) - 1, None)

    def launchKernel(self, handle: int, *numbers: int) -> None:
        """Read the arguments as the driver would."""
        if self.errors:
            raise self.errors.pop(0)
        grid, gy, gz, threads, by, bz, smem, stream, params, extra = numbers
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, 0)
        entry = self.handles[handle]
        kinds: dict[str, Any] = {
            "ptr": ctypes.c_uint64,
            "i64": ctypes.c_int64,
            "i32": ctypes.c_int32,
            "f32": ctypes.c_float,
        }
        fields = [(name, kinds[kind]) for name, kind, _ in entry.params]
        if entry.backend == "cuda":
            layout: Any = type("Params", (ctypes.Structure,), {"_fields_": fields})
            address: Any = ctypes.c_void_p.from_address(params).value
            struct = layout.from_address(address)
            values = {name: getattr(struct, name) for name, _ in fields}
        else:
            count = len(fields) + 2
            addresses: Any = (ctypes.c_void_p * count).from_address(params)
            scratch = [ctypes.c_uint64.from_address(one).value for one in addresses[-2:]]
            assert scratch == [0, 0]
            values = {
                name: kind.from_address(address).value
                for (name, kind), address in zip(fields, addresses, strict=False)
            }
        self.launches.append(Launched(grid, threads, smem, stream, values))

    @property
    def last(self) -> Launched:
        return self.launches[-1]


def pretend_gpu(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, *, backend: str = "cuda"
) -> PretendedGpu:
    """Make CPU tensors go the way of a GPU's, up to the driver. The package has cubins."""
    gpu = PretendedGpu(package, backend)
    launch = submodule(package, "launch")
    monkeypatch.setattr(launch, "driver", lambda: gpu)
    monkeypatch.setattr(launch, "raw_stream", lambda: lambda device: 7)
    monkeypatch.setattr(submodule(package, "kernels").LOADED, "get", gpu.load)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    scratch = submodule(package, "workspace").Scratch
    monkeypatch.setattr(
        scratch, "new", lambda size, device: scratch.over(torch.zeros(size, dtype=torch.uint8))
    )
    for name in PRETENDED_MODULES:
        module = submodule(package, name)
        monkeypatch.setattr(module, "choose", gpu.choose)
        if hasattr(module, "slots_of"):
            monkeypatch.setattr(module, "slots_of", lambda choice, device: gpu.slots)
    return gpu


@dataclass(frozen=True)
class Call:
    """Arguments of the ops for specimen(), on a CPU: 3 sequences, one of them empty."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: Any
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor

    @property
    def decode(self) -> tuple[Any, ...]:
        return self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens

    @property
    def prefill(self) -> tuple[Any, ...]:
        return (*self.decode, self.cu_seqlens_q)


def make_call(spec: Spec | None = None, *, num_blocks: int = 8, width: int = 4) -> Call:
    """One token each of three sequences; lengths 5, 0 and 16."""
    spec = spec or specimen()
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16

    def new(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    axes = [spec.block_size, spec.num_kv_heads]
    if spec.layout == "HND":
        axes.reverse()
    table = torch.randperm(num_blocks, generator=generator)[:width].int().repeat(3, 1)
    lens = torch.tensor([5, 0, 4 * spec.block_size], dtype=torch.int32)
    lookup: Any = table
    if spec.lookup == "csr":
        lookup = (torch.tensor([0, 2, 2, 6], dtype=torch.int32), torch.arange(6).int())
    return Call(
        q=new(3, spec.num_q_heads, spec.head_dim),
        k_cache=new(num_blocks, *axes, spec.head_dim),
        v_cache=new(num_blocks, *axes, spec.head_dim_v),
        block_table=lookup,
        seq_lens=lens,
        cu_seqlens_q=torch.tensor([0, 1, 2, 3], dtype=torch.int32),
    )


def new_out() -> torch.Tensor:
    """A result for make_call()'s decode or prefill."""
    return torch.zeros(3, 4, 32, dtype=torch.bfloat16)
