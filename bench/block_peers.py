"""Trace replays on our block manager and the peers': what is found again, and how fast.

All contestants live in one process and get the same requests in turns. Times are CPU times of the
process, so that other work on the machine counts less.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence as Items
from dataclasses import dataclass

from bench.block_drivers import Index, Manager, OurIndex, OurManager, Player
from bench.peers import Availability, sglang_radix, vllm_blocks
from bench.traces import Request

CONCURRENCY = 32  # requests alive at a time
TURN = 25  # requests before the next contestant's turn

Missing = dict[str, str]  # name -> reason


@dataclass(frozen=True)
class Hits:
    """Prefix hits of one manager on a whole trace."""

    trace: str
    block_size: int
    num_blocks: int
    name: str
    hit_rate: float  # of all prompt tokens
    requests_more: int  # requests with more cached tokens than ours
    requests_fewer: int


@dataclass(frozen=True)
class Speed:
    """Operations per second of one contestant."""

    trace: str
    what: str  # manager: admit, decode, free; index: match, lock, evict, insert, unlock
    block_size: int
    num_blocks: int
    requests: int
    name: str
    operations: int
    us_per_operation: float
    us_per_request: float


def found(available: Callable[[], Availability], name: str, missing: Missing) -> bool:
    """Whether a peer is here; if not, its reason is kept."""
    if name in missing:
        return False
    state = available()
    if not state.ok:
        missing[name] = state.text
    return state.ok


def managers(num_blocks: int, block_size: int, missing: Missing) -> list[Manager]:
    """Ours first."""
    made: list[Manager] = [OurManager(num_blocks, block_size)]
    if found(vllm_blocks.available, vllm_blocks.NAME, missing):
        made.append(vllm_blocks.VllmManager(num_blocks, block_size))
    return made


def indexes(num_blocks: int, block_size: int, missing: Missing) -> list[Index]:
    """Ours first."""
    made: list[Index] = [OurIndex(num_blocks, block_size)]
    if found(sglang_radix.available, sglang_radix.NAME, missing):
        made.append(sglang_radix.SglangIndex(num_blocks, block_size))
    return made


def turns(requests: Items[Request]) -> Iterator[tuple[int, Items[Request]]]:
    """The trace in pieces; every second piece is played in the opposite order."""
    for number, begin in enumerate(range(0, len(requests), TURN)):
        yield 1 - 2 * (number % 2), requests[begin : begin + TURN]


def compare_hits(
    trace: str, requests: Items[Request], num_blocks: int, block_size: int, missing: Missing
) -> tuple[Hits, ...]:
    """Every manager plays the whole trace under the same rule."""
    prompts = sum(request.num_prompt for request in requests)
    played = []
    for manager in managers(num_blocks, block_size, missing):
        player = Player(manager, CONCURRENCY)
        player.play(requests)
        played.append((manager.name, player.replay.hits))
        gc.collect()
    ours = played[0][1]
    return tuple(
        Hits(
            trace=trace,
            block_size=block_size,
            num_blocks=num_blocks,
            name=name,
            hit_rate=sum(hits) / prompts,
            requests_more=sum(a > b for a, b in zip(hits, ours, strict=True)),
            requests_fewer=sum(a < b for a, b in zip(hits, ours, strict=True)),
        )
        for name, hits in played
    )


def time_managers(
    trace: str, requests: Items[Request], num_blocks: int, block_size: int, missing: Missing
) -> tuple[Speed, ...]:
    """A request's whole life, every token of it, in turns."""
    players = [Player(m, CONCURRENCY) for m in managers(num_blocks, block_size, missing)]
    for order, piece in turns(requests):
        for player in players[::order]:
            player.play(piece)
    return tuple(
        Speed(
            trace=trace,
            what="manager",
            block_size=block_size,
            num_blocks=num_blocks,
            requests=len(requests),
            name=player.manager.name,
            operations=player.replay.operations,
            us_per_operation=player.replay.seconds / player.replay.operations * 1e6,
            us_per_request=player.replay.seconds / len(requests) * 1e6,
        )
        for player in players
    )


def time_indexes(
    trace: str, requests: Items[Request], num_blocks: int, block_size: int, missing: Missing
) -> tuple[Speed, ...]:
    """Prompts only, in turns."""
    players = indexes(num_blocks, block_size, missing)
    seconds = [0.0] * len(players)
    for order, piece in turns(requests):
        for number in range(len(players))[::order]:
            made = [players[number].prepare(request) for request in piece]
            begin = time.process_time()
            for one in made:
                players[number].serve(one)
            seconds[number] += time.process_time() - begin
    return tuple(
        Speed(
            trace=trace,
            what="index",
            block_size=block_size,
            num_blocks=num_blocks,
            requests=len(requests),
            name=player.name,
            operations=len(requests),
            us_per_operation=spent / len(requests) * 1e6,
            us_per_request=spent / len(requests) * 1e6,
        )
        for player, spent in zip(players, seconds, strict=True)
    )
