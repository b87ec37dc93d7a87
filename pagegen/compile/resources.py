"""Reads what a kernel costs from the compiled code and from the assembler's report.

It knows no compiler's interface: it is given bytes and text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pagegen.errors import CompileError

# Attributes of .nv.info sections, by the names that cuobjdump -elf prints.
EIATTR_FRAME_SIZE: Final = 0x11
EIATTR_MIN_STACK_SIZE: Final = 0x12
EIATTR_REGCOUNT: Final = 0x2F
EIATTR_CUDA_API_VERSION: Final = 0x37
SIZED: Final = 0x04  # format of an attribute whose 16-bit value is the length of what follows

RESERVED_SMEM_BYTES: Final = 1024  # counted in .nv.shared.<entry> since sm_90


@dataclass(frozen=True)
class Figures:
    """What the code of one kernel takes. Registers, spills and stack are those of a thread."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    cuda: tuple[int, int]  # of the toolkit that assembled it; (0, 0) for gfx


@dataclass(frozen=True)
class Section:
    """An ELF section."""

    name: str
    info: int  # sh_info
    size: int
    data: bytes  # empty when the section has no bytes in the file


def sections(code: bytes) -> Iterator[Section]:
    """Sections of a little-endian ELF64 file (System V ABI, chapter 4)."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    (table,) = struct.unpack_from("<Q", code, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", code, 58)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", code, table + index * entry_size)
        for index in range(count)
    ]
    names_offset = headers[names_index][4]
    no_bits = 8
    for name, kind, _, _, offset, size, _, info, _, _ in headers:
        start = names_offset + name
        text = code[start : code.index(b"\0", start)].decode()
        yield Section(text, info, size, b"" if kind == no_bits else code[offset : offset + size])


def attributes(data: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(attribute, 32-bit words) of an .nv.info section, for those that have a length."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            words = value // 4
            yield attribute, struct.unpack_from(f"<{words}I", data, at)
            at += value


def cubin_figures(code: bytes, entry: str, log: str, *, counts_reserved: bool) -> Figures:
    """Figures of `entry` in a cubin; `log` is what ptxas -v said, "" when it is lost.

    Registers, stack and version come from the cubin. Spills are only in the log: without it, any
    stack frame counts as spilled. `counts_reserved`: sm_90 and later, whose .nv.shared section
    includes what the runtime reserves. Raises CompileError when the cubin does not tell.
    """
    try:
        found = {section.name: section for section in sections(code)}
        if f".text.{entry}" not in found:
            raise CompileError(f"the source defines no kernel {entry}", allowed='extern "C"')
        symbol = found[f".text.{entry}"].info & 0xFFFFFF  # the top byte is older cubins' registers
        of_symbol = {
            attribute: words[1]
            for attribute, words in attributes(found[".nv.info"].data)
            if len(words) == 2 and words[0] == symbol
        }
        of_entry = dict(attributes(found[f".nv.info.{entry}"].data))
        registers = of_symbol[EIATTR_REGCOUNT]
        stack = max(of_symbol.get(EIATTR_FRAME_SIZE, 0), of_symbol.get(EIATTR_MIN_STACK_SIZE, 0))
        version = of_entry[EIATTR_CUDA_API_VERSION][0]
    except (KeyError, ValueError, IndexError, struct.error) as error:
        raise CompileError(
            f"{entry}: the compiled code does not say what it takes ({error!r})",
            remedy="report it with the compiler's version; another release may help",
        ) from error
    shared = found.get(f".nv.shared.{entry}")
    in_section = shared.size if shared is not None else 0
    if counts_reserved:
        in_section = max(in_section - RESERVED_SMEM_BYTES, 0)
    spills = logged_spill_bytes(log)
    smem = logged_smem_bytes(log)
    return Figures(
        registers=registers,
        spill_bytes=stack if spills is None else spills,
        stack_bytes=stack,
        static_smem_bytes=in_section if smem is None else smem,
        cuda=divmod(version, 10),
    )


def logged_spill_bytes(log: str) -> int | None:
    """Spilled bytes of all functions in a ptxas -v log; None when it does not say."""
    pairs = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return sum(max(int(stores), int(loads)) for stores, loads in pairs) if pairs else None


def logged_smem_bytes(log: str) -> int | None:
    """Static shared memory in a ptxas -v log; None when it does not say."""
    used = re.search(r"Used \d+ registers(.*)", log)
    if used is None:
        return None
    smem = re.search(r"(\d+) bytes smem", used[1])
    return int(smem[1]) if smem is not None else 0


def amdgcn_figures(text: str, entry: str) -> Figures:
    """Figures of the one kernel of an AMD assembly listing, from its metadata.

    Source: LLVM, User Guide for AMDGPU Backend, Code Object V3 metadata. Raises CompileError when
    a key is missing.
    """

    def key(name: str) -> int:
        found = re.search(rf"^\s*(?:- )?\.{name}:\s+(\d+)$", text, re.MULTILINE)
        if found is None:
            raise CompileError(
                f"{entry}: the assembly's metadata has no .{name}",
                remedy="report it with the compiler's version; another release may help",
            )
        return int(found[1])

    return Figures(
        registers=key("vgpr_count"),
        spill_bytes=4 * key("vgpr_spill_count"),
        stack_bytes=key("private_segment_fixed_size"),
        static_smem_bytes=key("group_segment_fixed_size"),
        cuda=(0, 0),
    )
