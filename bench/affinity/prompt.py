"""A prompt as the client, the routers and the caches see it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.placement.request import Blocks


class Prompt(Sequence[int]):
    """Token ids that have a length and blocks, and no content: nothing here reads single tokens.

    Attributes:
        blocks: ids of the blocks; equal ids are equal tokens after an equal prefix.
    """

    __slots__ = ("_tokens", "blocks")

    def __init__(self, tokens: int, blocks: Blocks) -> None:
        self._tokens = tokens
        self.blocks = blocks

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        raise TypeError("a simulated prompt has a length and blocks, and no tokens")
