"""Rendezvous hashing: the rank that a key prefers, alike in every process and for every number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def choose_by_hash(key: str, ranks: Iterable[int]) -> int:
    """Returns the one of `ranks` that scores highest for `key`.

    The score of a rank does not depend on which others there are, so a rank that joins or leaves moves
    only the keys that prefer it.
    """
    return max(ranks, key=lambda rank: _score(key, rank))


def _score(key: str, rank: int) -> bytes:
    return blake2b(f"{rank}:{key}".encode(), digest_size=8, person=b"rh1-rank").digest()
