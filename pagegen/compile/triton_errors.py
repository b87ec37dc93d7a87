"""Triton's exceptions as ours: its first complaint, at its place in the emitted source.

It knows no option and no target; it imports Triton only through the exception it is given.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

from pagegen.compile.compiler import SourceText
from pagegen.errors import CompileError, Position


def refusal(error: BaseException, source: SourceText, file: str, compiler: str) -> CompileError:
    """`error`, raised while `file`, a copy of `source`, was imported or compiled, as ours."""
    chain = causes(error)
    inner = chain[-1]
    position = next(filter(None, (place(row, source, file) for row in reversed(chain))), None)
    message = complaint(inner).replace(file, source.path)
    return CompileError(
        f"{compiler}: {message}", position=position, where="" if position else source.path
    )


def causes(error: BaseException) -> list[BaseException]:
    """The error and what caused it, outermost first, down to the one that says what is wrong."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        if type(chain[-1]).__name__ == "PTXASError":
            break  # what caused it is only the exit status
        chain.append(cause)
    return chain


def place(error: BaseException, source: SourceText, file: str) -> Position | None:
    """Where in the source: from Triton's syntax node, from a SyntaxError, or from the traceback."""
    node: Any = getattr(error, "node", None)
    if hasattr(node, "lineno"):
        # Triton counts lines from the function's own `def`, in a text cut out of its file; that
        # file may be one of Triton's.
        before, found, _ = source.text.partition(getattr(error, "src", None) or "\0")
        if not found:
            return None
        return position(source, before.count("\n") + node.lineno, node.col_offset + 1)
    if isinstance(error, SyntaxError) and error.filename == file:
        return position(source, error.lineno or 1, error.offset or 1)
    frames = [row for row in traceback.extract_tb(error.__traceback__) if row.filename == file]
    return position(source, frames[-1].lineno or 1, 1) if frames else None


def position(source: SourceText, line: int, column: int) -> Position:
    """A place in the emitted file, with its text."""
    lines = source.text.splitlines()
    return Position(source.path, line, column, lines[line - 1] if line <= len(lines) else "")


def complaint(error: BaseException) -> str:
    """The one line that says what is wrong."""
    told = getattr(error, "error_message", None) or getattr(error, "msg", None) or error
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    assembler = [line for line in lines if re.match(r"ptxas.*\b(error|fatal)\b", line)]
    line = (assembler or lines or [type(error).__name__])[0]
    return re.sub(r"\S+\.ptx\b", "its PTX", line)
