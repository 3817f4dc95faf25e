"""What the simulation is made of: prompts as blocks, and one request on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simpy import Event

BLOCK_TOKENS = 512

Blocks: TypeAlias = Sequence[int]
"""Ids of a prompt's blocks; equal ids are equal tokens after an equal prefix."""


@dataclass(slots=True, eq=False)
class Request:
    """One prompt for the engine.

    Attributes:
        conversation: names its conversation.
        blocks: the prompt.
        prompt_tokens: its length.
        arrived_s: when it reached the engine.
        done: succeeds when its prompt is computed.
        rank_hint: the requested rank, with relax; None for none.
        rank: where it ran.
        cached_tokens: found in that rank's KV cache.
        left_tokens: still to compute.
    """

    conversation: str
    blocks: Blocks
    prompt_tokens: int
    arrived_s: float
    done: Event
    rank_hint: int | None = None
    rank: int = -1
    cached_tokens: int = 0
    left_tokens: int = 0
