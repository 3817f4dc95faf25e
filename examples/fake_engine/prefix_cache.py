"""A KV cache reduced to the one thing that routing depends on: which prompt prefixes it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

TOKENS_PER_BLOCK = 8  # the real default is 32; captured prompts are short
MAX_BLOCKS = 65_536


@dataclass(frozen=True, slots=True)
class Block:
    """One full KV block; `key` covers all tokens before it too, `parent_key` is None for the first."""

    key: int
    parent_key: int | None
    token_ids: tuple[int, ...]


class PrefixCache:
    """The cached blocks of one rank, least recently used out first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, token_ids: Sequence[int], salt: Hashable = None) -> int:
        """Count the leading tokens whose KV blocks are cached; the last token never is one of them."""
        n_blocks = 0
        for block in self._chain(token_ids[:-1], salt):
            if block.key not in self._blocks:
                break
            n_blocks += 1
        return n_blocks * TOKENS_PER_BLOCK

    def store(self, token_ids: Sequence[int], salt: Hashable = None) -> list[Block]:
        """Remember every full block of these tokens, and return those that are new."""
        new = []
        for block in self._chain(token_ids, salt):
            if block.key not in self._blocks:
                new.append(block)
            self._blocks[block.key] = None
            self._blocks.move_to_end(block.key)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)
        return new

    @staticmethod
    def _chain(token_ids: Sequence[int], salt: Hashable) -> Iterator[Block]:
        # A block's key covers all tokens before it, as in a radix tree.
        key, parent_key = hash(salt), None
        for start in range(0, len(token_ids) - TOKENS_PER_BLOCK + 1, TOKENS_PER_BLOCK):
            tokens = tuple(token_ids[start : start + TOKENS_PER_BLOCK])
            key = hash((key, tokens))
            yield Block(key, parent_key, tokens)
            parent_key = key
