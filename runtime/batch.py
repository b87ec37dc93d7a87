"""What one step runs: the tokens of some sequences, and where their keys and values are.

It knows neither scheduler nor model: it is the border where plain records become tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class SequenceInput(NamedTuple):
    """What a step runs of one sequence. The scheduler fills it.

    row          of the block table that is this sequence's while it runs, 0 to max_num_seqs - 1
    token_ids    to run, at least one
    position     of the first of them, which is the number of tokens already in the cache
    block_ids    the sequence's blocks from the `first_block`-th on; the row forgets those it had
                 from there on. Empty: the row's blocks are as they were
    first_block  blocks that the row keeps
    num_logits   of how many of the last tokens logits are wanted; 0 for a chunk that is not the
                 prompt's last
    """

    row: int
    token_ids: Sequence[int]
    position: int
    block_ids: Sequence[int] = ()
    first_block: int = 0
    num_logits: int = 1


@dataclass(frozen=True)
class Padding:
    """The fixed shape of a captured graph: rows past the real ones have length 0 and slot -1.

    max_seq_len: the longest sequence that a replay may bring, in tokens.
    """

    num_seqs: int
    max_seq_len: int


@dataclass(frozen=True)
class DecodeRows:
    """The sequences that run one token: the batch's first num_seqs tokens, one each.

    block_table [num_seqs, max_blocks] int32, seq_lens [num_seqs] int32; no length is above
    max_seq_len.
    """

    num_seqs: int
    max_seq_len: int
    block_table: torch.Tensor
    seq_lens: torch.Tensor


@dataclass(frozen=True)
class PrefillRows:
    """The sequences that run several tokens: the batch's tokens from first_token on.

    block_table [num_seqs, max_blocks] int32, seq_lens [num_seqs] int32, cu_seqlens_q [num_seqs + 1]
    int32, counted from first_token; no length is above max_seq_len, no number of tokens above
    max_seqlen_q.
    """

    first_token: int
    num_seqs: int
    max_seqlen_q: int
    max_seq_len: int
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """One step's tensors. They are views of its builder's buffers, and hold until the next build.

    token_ids       [num_tokens] int64
    positions       [num_tokens] int64
    slot_mapping    [num_tokens] int64, block_id * block_size + offset; -1 for padding
    logits_indices  [num_logits] int64, tokens whose logits are wanted, in the order of the
                    sequences given to the builder, whatever order they run in
    decode, prefill the two kinds of rows; None where there are none. Decode comes first, so that
                    its tensors begin at the same place whatever follows
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logits_indices: torch.Tensor
    decode: DecodeRows | None
    prefill: PrefillRows | None

    @property
    def num_tokens(self) -> int:
        """Tokens, padding included."""
        return self.token_ids.shape[0]
