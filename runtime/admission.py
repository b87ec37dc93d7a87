"""What can never run is refused before it waits.

It knows sizes only, and no sequence.
"""

from __future__ import annotations

from pagegen.errors import RequestError
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.limits import Limits


def check_fits(
    manager: BlockManager,
    limits: Limits,
    name: str,
    length: int,
    max_new_tokens: int,
    width: int,
    *,
    together: bool,
) -> None:
    """Raises RequestError for what would not fit alone.

    length: of the prompt, in tokens; width: sequences that it becomes; together: all of them must
    fit at once, else one after the other.
    """
    if not 1 <= length < limits.max_model_len:
        raise RequestError(
            f"{name}: a prompt of {length} tokens",
            allowed=f"1 to {limits.max_model_len - 1}: max_model_len is "
            f"{limits.max_model_len}, and a token is to follow",
        )
    if max_new_tokens < 1 or not 1 <= width <= limits.max_num_seqs:
        raise RequestError(
            f"{name}: {max_new_tokens} new tokens, {width} sequences",
            allowed=f"at least 1 token, 1 to {limits.max_num_seqs} sequences",
        )
    # The last token is never written. A window lets go of what it has passed.
    needed = min(length + max_new_tokens, limits.max_model_len) - 1
    if manager.ledger.window is not None:
        needed = min(needed, manager.ledger.window + limits.max_num_batched_tokens)
    if needed > manager.max_tokens:
        raise RequestError(
            f"{name}: {needed} tokens in the cache",
            allowed=f"{manager.max_tokens}: {manager.pool.num_usable} blocks of "
            f"{manager.block_size} tokens",
            remedy="ask for fewer tokens, or give the cache more memory",
        )
    if together:
        shares = manager.prefix_caching and manager.ledger.window is None
        shared = length // manager.block_size if shares else 0
        blocks = shared + width * (manager.ledger.num_blocks_of(needed) - shared)
        most = manager.pool.num_usable - int(limits.watermark * manager.pool.num_usable)
        if blocks > most:
            raise RequestError(
                f"{name}: {blocks} blocks for {width} sequences at once",
                allowed=f"{most} blocks of {manager.block_size} tokens",
                remedy="ask for fewer sequences or tokens, or give the cache more memory",
            )
