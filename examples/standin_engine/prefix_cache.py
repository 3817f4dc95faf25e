"""A KV cache reduced to the one thing that routing depends on: which prompt prefixes it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

TOKENS_PER_BLOCK = 8  # the real default is 32; captured prompts are short
MAX_BLOCKS = 65_536


class PrefixCache:
    """The cached blocks of one rank, least recently used out first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, token_ids: Sequence[int], salt: Hashable = None) -> int:
        """Count the leading tokens whose KV blocks are cached; the last token never is one of them."""
        n_blocks = 0
        for block in self._chain(token_ids[:-1], salt):
            if block not in self._blocks:
                break
            n_blocks += 1
        return n_blocks * TOKENS_PER_BLOCK

    def store(self, token_ids: Sequence[int], salt: Hashable = None) -> None:
        """Remember every full block of these tokens."""
        for block in self._chain(token_ids, salt):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    @staticmethod
    def _chain(token_ids: Sequence[int], salt: Hashable) -> Iterator[int]:
        # A block's key covers all tokens before it, as in a radix tree.
        key = hash(salt)
        for start in range(0, len(token_ids) - TOKENS_PER_BLOCK + 1, TOKENS_PER_BLOCK):
            key = hash((key, tuple(token_ids[start : start + TOKENS_PER_BLOCK])))
            yield key
