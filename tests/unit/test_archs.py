"""The targets: which device runs which cubin, and what each compiler calls them."""

from __future__ import annotations

import pytest

from pagegen.archs import ARCHS, Arch, arch
from pagegen.errors import TargetError

CUDA = [row for row in ARCHS if row.vendor == "cuda"]


@pytest.mark.parametrize("name", ["sm_999", "sm_120", "9.0", "90", "", "SM_90"])
def test_an_unknown_target_lists_the_known_ones(name: str) -> None:
    with pytest.raises(TargetError, match="unknown arch") as caught:
        arch(name)
    assert repr(name) in str(caught.value)
    assert all(row.name in caught.value.allowed for row in ARCHS)


def test_names_are_distinct_and_find_their_row() -> None:
    assert len({row.name for row in ARCHS}) == len(ARCHS)
    assert [arch(row.name) for row in ARCHS] == list(ARCHS)


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),  # a cubin runs on later minor versions
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),  # never on another major version
        ("sm_90", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),  # an "a" target: this capability only
        ("sm_100a", (10, 3), False),
        ("sm_120a", (12, 0), True),
        ("gfx942", (9, 4), False),  # no cubin
    ],
)
def test_which_device_runs_a_cubin(name: str, capability: tuple[int, int], runs: bool) -> None:
    assert arch(name).runs_on(capability) is runs


@pytest.mark.parametrize("row", CUDA, ids=lambda row: str(row.name))
def test_a_cuda_name_says_its_capability_and_kind(row: Arch) -> None:
    major, minor = row.capability
    assert row.name == f"sm_{major}{minor}" + "a" * row.exact_device
    assert row.triton_arch == 10 * major + minor
    assert row.warp_size == 32


def test_triton_knows_amd_targets_by_name() -> None:
    assert (arch("gfx942").triton_arch, arch("gfx942").warp_size) == ("gfx942", 64)


@pytest.mark.parametrize("row", ARCHS, ids=lambda row: str(row.name))
def test_limits_are_plausible(row: Arch) -> None:
    assert 64 * 1024 <= row.smem_per_block_bytes <= row.smem_per_sm_bytes <= 228 * 1024
    assert row.registers_per_sm % 65536 == 0
    assert row.max_threads_per_sm % row.warp_size == 0


def test_instructions_of_one_device_need_the_exact_target() -> None:
    assert arch("sm_90a").wgmma and not arch("sm_90").wgmma
    assert all(row.exact_device for row in CUDA if row.wgmma)
    assert [row.name for row in CUDA if not row.mma_fp8] == ["sm_80", "sm_86", "sm_90"]
