"""Every error a user can meet, on one page: what was asked, what is allowed, what to do, and where.

It knows nothing of any stage: a stage raises, the command line prints, and neither formats twice.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """A place in a text file; line and column count from 1."""

    path: str
    line: int
    column: int
    text: str  # the whole line, for the caret

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def caret(self) -> str:
        """The line with a caret under the column."""
        return f"    {self.text}\n    {' ' * (self.column - 1)}^"


class PagegenError(Exception):
    """Base of every error with a remedy; the command line prints it and exits with status 2.

    asked: what was given; allowed: what would be accepted; remedy: what to do next; where: file
    position, tensor name or path.
    """

    def __init__(
        self,
        asked: str,
        *,
        allowed: str = "",
        remedy: str = "",
        where: str = "",
        position: Position | None = None,
    ) -> None:
        self.asked = asked
        self.allowed = allowed
        self.remedy = remedy
        self.position = position
        self.where = str(position) if position is not None else where
        super().__init__(self.render())

    def render(self) -> str:
        """The message as the user sees it."""
        head = f"{self.where}: {self.asked}" if self.where else self.asked
        parts = [head]
        if self.position is not None:
            parts.append(self.position.caret())
        if self.allowed:
            parts.append(f"  allowed: {self.allowed}")
        if self.remedy:
            parts.append(f"  to fix: {self.remedy}")
        return "\n".join(parts)


class SpecError(PagegenError):
    """The YAML text or a value in it is not a spec."""


class TargetError(PagegenError):
    """An architecture is unknown, or lacks what the spec asks for."""


class PlanError(PagegenError):
    """A plan's numbers contradict each other or the target's limits."""


class TemplateError(PagegenError):
    """A template names something the plan does not have, or prints what is not code."""


class CompileError(PagegenError):
    """A compiler refused the emitted source, or its result spills or needs a stack frame."""


class BuildError(PagegenError):
    """A package could not be written, or generated/ is not what the spec gives."""


class VerifyError(PagegenError):
    """A kernel's result differs from the oracle, or a promised check did not fire."""


class SimulationError(PagegenError):
    """A simulated CUDA kernel did what a GPU would not allow, or not do the same way twice."""


class PackageError(PagegenError):
    """A generated package, manifest or cubin is missing, damaged, stale or foreign."""


class DeviceError(PagegenError):
    """No usable GPU, a driver too old for a cubin, or a GPU no artefact was built for."""


class ModelError(PagegenError):
    """A model cannot be loaded, or is not one that a package's kernels compute."""


class CacheError(PagegenError):
    """A KV cache that does not fit its memory, or what would break the books of its blocks."""


class RequestError(PagegenError):
    """A request that can never run, a sampling parameter or a limit out of range."""
