"""Requests in flight: what each of them weighs until it ends, or until it was silent for too long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from routing_hints.conversation_id import ConversationHash
from routing_hints.vocabulary import PlacementState
from sidecar.placement.engine_phase import EnginePhase
from sidecar.placement.table import Entry

Item: TypeAlias = tuple[int, int]
"""Stream and `seq` of an item."""

MAX_LEASES = 32_768
"""Far more than one worker has in flight; bounds what a peer that ends nothing can hold."""


@dataclass(slots=True, eq=False)
class Lease:
    """One placed request in flight."""

    decision_id: str
    item: Item
    request_id: str
    engine_phase: EnginePhase
    conversation: ConversationHash
    """Empty for a request without one."""
    entry: Entry | None
    """The conversation's entry when it was placed."""
    rank: int
    placement: PlacementState
    prompt_tokens: int
    resident_tokens: float
    """Tokens that the conversation kept on the rank if the engine has evicted none."""
    new_tokens: int
    """Tokens that it adds to the rank's outstanding work."""
    may_overflow: bool
    """Whether some rank had as many requests in flight as it runs at a time; what overflows fills others."""
    opened_at_s: float


class Leases:
    """The open leases, by every name that the end of a request can go by."""

    def __init__(self) -> None:
        self._by_decision: OrderedDict[str, Lease] = OrderedDict()
        self._by_item: dict[Item, Lease] = {}
        self._by_attempt: dict[tuple[EnginePhase, str], Lease] = {}

    def __len__(self) -> int:
        return len(self._by_decision)

    def __iter__(self) -> Iterator[Lease]:
        """Gives the leases, oldest first."""
        return iter(self._by_decision.values())

    @property
    def oldest(self) -> Lease | None:
        """The lease that was opened first."""
        return next(iter(self), None)

    def add(self, lease: Lease) -> None:
        """Opens a lease; no other may have its decision or attempt."""
        self._by_decision[lease.decision_id] = lease
        self._by_item[lease.item] = lease
        if lease.request_id:
            self._by_attempt[lease.engine_phase, lease.request_id] = lease

    def remove(self, lease: Lease) -> None:
        """Closes an open lease."""
        del self._by_decision[lease.decision_id]
        # A peer may have given one seq to two items.
        if self._by_item.get(lease.item) is lease:
            del self._by_item[lease.item]
        if lease.request_id:
            del self._by_attempt[lease.engine_phase, lease.request_id]

    def find_decision(self, decision_id: str) -> Lease | None:
        """Returns the lease of a decision."""
        return self._by_decision.get(decision_id)

    def find_item(self, item: Item) -> Lease | None:
        """Returns the lease of an item."""
        return self._by_item.get(item)

    def find_earlier(
        self, engine_phases: Iterable[EnginePhase], request_id: str, stream: int
    ) -> Lease | None:
        """Returns the lease of a request in one of these engine phases, if an earlier stream opened it."""
        found = (self.find_attempt(engine_phase, request_id) for engine_phase in engine_phases)
        return next((lease for lease in found if lease is not None and lease.item[0] < stream), None)

    def find_attempt(self, engine_phase: EnginePhase, request_id: str) -> Lease | None:
        """Returns the lease of an earlier attempt at the same request in the same engine phase."""
        return self._by_attempt.get((engine_phase, request_id)) if request_id else None
