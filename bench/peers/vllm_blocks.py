"""vLLM's KVCacheManager over its BlockPool, as its scheduler calls them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from bench.peers import Availability, import_peer
from bench.traces import Request

NAME = "vllm"
MODULES = ("vllm.v1.core.kv_cache_manager", "vllm.v1.request")
LONGEST = 1 << 20


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer(*MODULES)


class VllmManager:
    """One full-attention group, its default hash (SHA-256), no events, no statistics."""

    name = NAME

    def __init__(self, num_blocks: int, block_size: int) -> None:
        interface = import_module("vllm.v1.kv_cache_interface")
        utils = import_module("vllm.v1.core.kv_cache_utils")
        sha256 = import_module("vllm.utils.hashing").sha256
        utils.init_none_hash(sha256)
        spec = interface.FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = interface.KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = import_module(MODULES[0]).KVCacheManager(
            config,
            max_model_len=LONGEST,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=True,
        )
        self.hasher = utils.get_request_block_hasher(block_size, sha256)
        self.request = import_module(MODULES[1]).Request
        sampling = import_module("vllm.sampling_params").SamplingParams
        self.sampling = sampling(max_tokens=LONGEST)

    def prepare(self, request: Request) -> Any:
        # Without its hasher: hashing is the cache's work, and is timed with it.
        return self.request(
            str(request.number), request.prompt().tolist(), self.sampling, None, block_hasher=None
        )

    def admit(self, made: Any) -> int | None:
        if made._block_hasher is None:
            made._block_hasher = self.hasher
            made.update_block_hashes()
        blocks, cached, _ = self.manager.get_computed_blocks(made)
        if self.manager.allocate_slots(made, made.num_tokens - cached, cached, blocks) is None:
            return None
        made.num_computed_tokens = made.num_tokens
        return int(cached)

    def decode(self, made: Any, token: int) -> bool:
        if made.num_tokens == made.num_computed_tokens:
            made.append_output_token_ids(token)
        if self.manager.allocate_slots(made, 1) is None:
            return False
        made.num_computed_tokens += 1
        return True

    def free(self, made: Any) -> None:
        self.manager.free(made)
