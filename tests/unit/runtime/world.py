"""A device and a model for the scheduler that hold it to its word.

The device is a store whose every slot says which tokens led to it. The model reads a sequence's
slots through its block table, as attention would, and fails if one holds anything else; its next
token follows from all that it read. So any block that is lost, shared or overwritten wrongly shows
as a wrong token, or fails at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.job import Job, State
from pagegen.runtime.limits import Limits
from pagegen.runtime.preemption import Costs
from pagegen.runtime.scheduler import Scheduler
from pagegen.runtime.step import Step

VOCABULARY = 50


def fingerprint(tokens: list[int], salt: str) -> bytes:
    """Of a token and all before it."""
    return blake2b(repr((salt, tokens)).encode(), digest_size=8).digest()


def next_token(tokens: list[int], salt: str) -> int:
    """What the model says after these tokens."""
    return int.from_bytes(fingerprint(tokens, salt), "big") % VOCABULARY


def answer(prompt: list[int], num_tokens: int, salt: str = "") -> list[int]:
    """An undisturbed run: the prompt and what follows, `num_tokens` in all."""
    tokens = list(prompt)
    while len(tokens) < num_tokens:
        tokens.append(next_token(tokens, salt))
    return tokens


@dataclass
class World:
    """Slots of the device and of the host, by (block, offset)."""

    manager: BlockManager
    scheduler: Scheduler
    slots: dict[tuple[int, int], bytes] = field(default_factory=dict)
    host: dict[tuple[int, int], bytes] = field(default_factory=dict)
    done: dict[Job, list[int]] = field(default_factory=dict)

    def run(self, step: Step) -> tuple[Job, ...]:
        """Do what a step says, in its order, and give the scheduler the results."""
        size = self.manager.block_size
        for block, place in step.swapped_out.tolist():
            for offset in range(size):
                self.host[place, offset] = self.slots.get((block, offset), b"")
        for place, block in step.swapped_in.tolist():
            for offset in range(size):
                self.slots[block, offset] = self.host[place, offset]
        for source, target in step.copies:
            for offset in range(size):
                self.slots[target, offset] = self.slots.get((source, offset), b"")
        tokens: dict[Job, int] = {}
        for chunk in step.chunks:
            if chunk.job.state is State.FINISHED:
                continue  # aborted meanwhile: what it writes, others overwrite
            sequence = chunk.job.sequence
            salt = sequence.namespace.salt
            known = sequence.tokens.tolist()
            end = chunk.position + chunk.num_tokens
            slots = self.manager.slot_mapping(sequence, chunk.position, end)
            for position, slot in zip(range(chunk.position, end), slots.tolist(), strict=True):
                self.slots[divmod(slot, size)] = fingerprint(known[: position + 1], salt)
            first = sequence.first_block * size
            for position in range(first, end):
                block = int(sequence.block_table[position // size])
                found = self.slots.get((block, position % size))
                assert found == fingerprint(known[: position + 1], salt), (chunk, position, block)
            if chunk.samples:
                tokens[chunk.job] = next_token(known, salt)
        finished = self.scheduler.update(step, tokens)
        for job in finished:
            self.done[job] = job.sequence.tokens.tolist()
        self.manager.check_integrity()
        return finished

    def run_all(self, most: int = 10_000) -> int:
        """Step until nothing is left; returns the number of steps."""
        for number in range(most):
            if not self.scheduler.has_work:
                return number
            step = self.scheduler.schedule()
            assert step.chunks, "a step that does nothing while there is work"
            self.run(step)
        raise AssertionError(f"not done after {most} steps")


SWAP = Costs(1, host_bytes_per_s=1e12, prefill_tokens_per_s=1.0)
RECOMPUTE = Costs(10**9, host_bytes_per_s=1.0, prefill_tokens_per_s=1e9)


def world(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    tokens: int = 32,
    seqs: int = 8,
    longest: int = 200,
    host: int = 0,
    costs: Costs = RECOMPUTE,
    window: int | None = None,
    watermark: float = 0.0,
    ageing: int = 100,
    chunk: int = 0,
) -> World:
    """A manager, a scheduler on it and a device."""
    manager = BlockManager(num_blocks, block_size, num_host_blocks=host, window=window)
    limits = Limits(tokens, seqs, longest, watermark, ageing, chunk)
    return World(manager, Scheduler(manager, limits, costs))


def submit(
    one: World, prompt: list[int], new: int, name: str = "r", priority: int = 0, width: int = 1
) -> Job:
    """A request by its numbers."""
    return one.scheduler.submit(name, prompt, max_new_tokens=new, priority=priority, width=width)
