"""Facts of the GPU at hand.

It knows no kernel, and imports torch only when asked.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from pagegen.errors import DeviceError


@dataclass(frozen=True)
class Device:
    """One GPU. Sizes in bytes."""

    index: int
    name: str  # as its driver calls it
    capability: tuple[int, int]
    num_sms: int
    smem_per_block_bytes: int  # opt-in limit of one block
    smem_per_sm_bytes: int
    l2_bytes: int
    memory_bytes: int
    driver_cuda: str  # newest CUDA the driver knows: "13.0"; "" if CuPy is not installed

    @property
    def arch(self) -> str:
        """The plain target of its capability: sm_90."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


def device(index: int | None = None) -> Device:
    """Facts of a GPU, by default torch's current one. Raises DeviceError without one."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise DeviceError(f"no torch: {error}", remedy="pip install torch") from error
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        raise DeviceError(
            "torch finds no GPU",
            remedy="check nvidia-smi and CUDA_VISIBLE_DEVICES"
            if built
            else "this torch was built for CPUs: install one built for your GPU",
        )
    count = torch.cuda.device_count()
    chosen = torch.cuda.current_device() if index is None else index
    if not 0 <= chosen < count:
        raise DeviceError(f"no GPU {chosen}", allowed=f"0 to {count - 1}")
    facts = torch.cuda.get_device_properties(chosen)
    return Device(
        index=chosen,
        name=facts.name,
        capability=(facts.major, facts.minor),
        num_sms=facts.multi_processor_count,
        smem_per_block_bytes=getattr(facts, "shared_memory_per_block_optin", 0),
        smem_per_sm_bytes=getattr(facts, "shared_memory_per_multiprocessor", 0),
        l2_bytes=getattr(facts, "L2_cache_size", 0),
        memory_bytes=facts.total_memory,
        driver_cuda=_driver_cuda(),
    )


def _driver_cuda() -> str:
    try:
        version: int = importlib.import_module("cupy.cuda").runtime.driverGetVersion()
    except Exception:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
