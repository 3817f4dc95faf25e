"""Where a conversation's first turn goes: one function for each value of `placement.first`.

A further one is a function here and its line in `FIRST_RANK_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import TypeAlias

from sidecar.placement.engine_phase import EnginePhase

FirstRankPolicy: TypeAlias = Callable[[EnginePhase, str, str, float, float], int]
"""Takes the engine phase, the placement key (empty for none), the request's id, the weight of resident tokens
and the present time; returns a rank."""


def choose_least_loaded(
    engine_phase: EnginePhase, key: str, request_id: str, resident_weight: float, now_s: float
) -> int:
    """Returns the rank with the least load; among equals the one that the key, else the request, prefers."""
    tied = engine_phase.loads.find_least_loaded(now_s, resident_weight * engine_phase.retention)
    return tied[0] if len(tied) == 1 else choose_by_hash(key or request_id, tied)


def choose_preferred(
    engine_phase: EnginePhase, key: str, request_id: str, resident_weight: float, now_s: float
) -> int:
    """Returns the rank that the key prefers, whatever the load; without a key the least loaded one."""
    if key:
        return choose_by_hash(key, range(engine_phase.loads.dp_size))
    return choose_least_loaded(engine_phase, key, request_id, resident_weight, now_s)


FIRST_RANK_POLICIES: Mapping[str, FirstRankPolicy] = {
    "least_load": choose_least_loaded,
    "rendezvous": choose_preferred,
}
"""By name in the policy file."""


def choose_by_hash(key: str, ranks: Iterable[int]) -> int:
    """Returns the rank that scores highest for `key` by rendezvous hashing, alike in every process.

    The score of a rank does not depend on which others there are, so a rank that joins or leaves moves only
    the keys that prefer it.
    """
    return max(ranks, key=lambda rank: _score(key, rank))


def _score(key: str, rank: int) -> bytes:
    return blake2b(f"{rank}:{key}".encode(), digest_size=8, person=b"rh1-rank").digest()
