"""One engine's leg: what conversations, load and trust in the engine are kept by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sidecar.model import Phase, Query
from sidecar.placement.compliance import Honour
from sidecar.placement.load import RankLoads

MAX_LEGS = 64
"""Engines times phases that are kept apart; beyond, the one used longest ago is forgotten."""
_RETENTION_STEP = 0.05
"""Weight of the newest observation; the last twenty or so count."""


class LegKey(NamedTuple):
    """Names a leg. Another instance is another engine start, with an empty KV cache."""

    worker_id: str
    instance_id: str
    model: str
    phase: Phase


def name_leg(query: Query) -> LegKey:
    """Returns the leg that a request is about."""
    return LegKey(query.worker_id, query.engine.instance_id, query.model, query.phase)


class Leg:
    """One generation of a leg; another number of ranks is another generation.

    Attributes:
        key: its name.
        loads: the load of its ranks.
        honour: whether its engine follows the ranks that it is sent.
        retention: share of a conversation's resident tokens that its engine really finds again, 0 to 1.
        used_at_s: when a request last came.
    """

    __slots__ = ("honour", "key", "loads", "retention", "used_at_s")

    def __init__(self, key: LegKey, dp_size: int, now_s: float) -> None:
        self.key = key
        self.loads = RankLoads(dp_size, now_s)
        self.honour = Honour()
        self.retention = 1.0
        self.used_at_s = now_s

    @property
    def in_flight(self) -> int:
        """Number of requests that hold a lease."""
        return sum(self.loads.requests_in_flight)

    def learn_retention(self, cached_tokens: int, findable_tokens: float) -> None:
        """Holds what the engine found in its cache against what was computed there before."""
        found = min(cached_tokens / findable_tokens, 1.0)
        self.retention += _RETENTION_STEP * (found - self.retention)


class Legs:
    """The present generation of every leg, the one used longest ago first.

    Args:
        on_retire: hears of a leg that is no longer among them.
    """

    def __init__(self, on_retire: Callable[[Leg], None]) -> None:
        self._legs: OrderedDict[LegKey, Leg] = OrderedDict()
        self._on_retire = on_retire

    def __iter__(self) -> Iterator[Leg]:
        return iter(self._legs.values())

    def get(self, key: LegKey, dp_size: int, now_s: float) -> Leg:
        """Returns the leg if it is known with that number of ranks, else a new one that is not kept yet."""
        leg = self._legs.get(key)
        return leg if leg is not None and leg.loads.dp_size == dp_size else Leg(key, dp_size, now_s)

    def keep(self, leg: Leg, now_s: float) -> None:
        """Marks a leg as used; a new one replaces the generation before."""
        before = self._legs.get(leg.key)
        self._legs[leg.key] = leg
        self._legs.move_to_end(leg.key)
        leg.used_at_s = now_s
        if before is not None and before is not leg:
            self._on_retire(before)
        if len(self._legs) > MAX_LEGS:
            self._on_retire(self._legs.popitem(last=False)[1])

    def expire(self, now_s: float, idle_ttl_s: float) -> None:
        """Forgets the legs without conversations and requests that were idle for longer."""
        while self._legs:
            leg = next(iter(self))
            if now_s - leg.used_at_s <= idle_ttl_s or leg.in_flight or leg.loads.conversations:
                return
            del self._legs[leg.key]
