"""Engine phases: one engine in one phase, by which conversations, load and compliance are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from routing_hints.vocabulary import Phase
from sidecar.model import Request
from sidecar.placement.compliance import ComplianceMonitor
from sidecar.placement.load import RankLoads

MAX_ENGINE_PHASES = 64
"""Engines times phases that are kept apart; beyond, the one used longest ago is forgotten."""
_RETENTION_STEP = 0.05
"""Weight of the newest observation; the last twenty or so count."""


class EnginePhaseKey(NamedTuple):
    """Names an engine phase. Another instance is another engine start, with an empty KV cache."""

    worker_id: str
    instance_id: str
    model: str
    phase: Phase


def name_engine_phase(request: Request) -> EnginePhaseKey:
    """Returns the name of the engine phase that a request belongs to."""
    return EnginePhaseKey(request.worker_id, request.engine.instance_id, request.model, request.phase)


class EnginePhase:
    """One generation of an engine phase; another number of ranks is another generation.

    Attributes:
        key: its name.
        loads: the load of its ranks.
        compliance: whether its engine follows the ranks that it is sent.
        retention: share of a conversation's resident tokens that its engine really finds again, 0 to 1.
        used_at_s: when a request last came.
    """

    __slots__ = ("compliance", "key", "loads", "retention", "used_at_s")

    def __init__(self, key: EnginePhaseKey, dp_size: int, now_s: float) -> None:
        self.key = key
        self.loads = RankLoads(dp_size, now_s)
        self.compliance = ComplianceMonitor()
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


class EnginePhases:
    """The present generation of every engine phase, the one used longest ago first.

    Args:
        on_retire: called with an engine phase that is no longer among them.
    """

    def __init__(self, on_retire: Callable[[EnginePhase], None]) -> None:
        self._engine_phases: OrderedDict[EnginePhaseKey, EnginePhase] = OrderedDict()
        self._on_retire = on_retire

    def __iter__(self) -> Iterator[EnginePhase]:
        return iter(self._engine_phases.values())

    def get(self, key: EnginePhaseKey, dp_size: int, now_s: float) -> EnginePhase:
        """Returns the engine phase with that number of ranks, else a new one that is not kept yet."""
        engine_phase = self._engine_phases.get(key)
        return (
            engine_phase
            if engine_phase is not None and engine_phase.loads.dp_size == dp_size
            else EnginePhase(key, dp_size, now_s)
        )

    def keep(self, engine_phase: EnginePhase, now_s: float) -> None:
        """Marks an engine phase as used; a new one replaces the generation before."""
        before = self._engine_phases.get(engine_phase.key)
        self._engine_phases[engine_phase.key] = engine_phase
        self._engine_phases.move_to_end(engine_phase.key)
        engine_phase.used_at_s = now_s
        if before is not None and before is not engine_phase:
            self._on_retire(before)
        if len(self._engine_phases) > MAX_ENGINE_PHASES:
            self._on_retire(self._engine_phases.popitem(last=False)[1])

    def expire(self, now_s: float, idle_ttl_s: float) -> None:
        """Forgets engine phases without conversations and requests that were idle for longer."""
        while self._engine_phases:
            engine_phase = next(iter(self))
            if (
                now_s - engine_phase.used_at_s <= idle_ttl_s
                or engine_phase.in_flight
                or engine_phase.loads.conversations
            ):
                return
            del self._engine_phases[engine_phase.key]
