"""Many short jobs in processes of their own, a few at a time: one may hang or crash.

It knows nothing of what a job does.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Answer = TypeVar("Answer")


def run_all(
    jobs: Sequence[Job],
    work: Callable[[Job], Answer],
    died: Callable[[Job, str], Answer],
    num_processes: int,
) -> Iterator[tuple[Job, Answer]]:
    """work(job) for every job, as they are done; died(job, how) where the process did not answer.

    Processes are forked: what the caller has prepared costs them nothing.
    """
    context = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    pending = iter(jobs)
    while True:
        while len(running) < num_processes and (job := next(pending, None)) is not None:
            ours, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=answer, args=(theirs, work, job))
            process.start()
            theirs.close()
            running[ours] = (job, process)
        if not running:
            return
        for found in wait(list(running)):
            assert isinstance(found, Connection)
            job, process = running.pop(found)
            try:
                result: Answer = found.recv()
            except EOFError:
                process.join()
                result = died(job, how(process.exitcode))
            process.join()
            yield job, result


def answer(connection: Connection, work: Callable[[Any], Any], job: Any) -> None:
    """A process's whole life."""
    torch.set_num_threads(1)  # the threads of the process that was forked are not here
    connection.send(work(job))


def how(exit_code: int | None) -> str:
    """Why a process ended without an answer."""
    if exit_code == -signal.SIGPROF:
        return "hang"
    return "crash" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
