"""Which rank each conversation lives on: bounded, least recently used out first, idle ones by age.

The order of last use is the order of age, so one ordered dict is both the LRU and the idle TTL. (cachetools
has each of them, but its TTL runs from insertion, it can't spare an entry in flight, and it takes 2.5 times
the memory of the dict.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from routing_hints.conversation_id import ConversationHash
from sidecar.placement.engine_phase import EnginePhase
from sidecar.placement.load import decay


@dataclass(slots=True, eq=False)
class Entry:
    """One conversation in one engine phase. Only the table changes `rank`, `resident` and `used_at_s`."""

    engine_phase: EnginePhase
    conversation: ConversationHash
    tenant_tag: int
    """Stands for the tenant, to compare with."""
    rank: int
    resident: float
    """Tokens in that rank's KV cache as of `used_at_s`."""
    used_at_s: float
    use_number: int
    """Grows with every use of any entry."""
    in_flight: int = 0
    is_established: bool = False
    """Whether some request of it has run."""
    has_moved: bool = False
    """Whether it was bound to another rank since its last decision."""

    def likely_resident(self, now_s: float) -> float:
        """Returns the tokens that are likely still in the rank's KV cache."""
        return decay(self.resident, now_s - self.used_at_s)


class ConversationTable:
    """The entries of all engine phases.

    Args:
        on_forget: called with why an entry was forgotten: `idle` or `evicted`.
    """

    def __init__(self, on_forget: Callable[[str], None]) -> None:
        self._entries: OrderedDict[tuple[EnginePhase, ConversationHash], Entry] = OrderedDict()
        self._on_forget = on_forget
        self._uses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        return self._entries.get((entry.engine_phase, entry.conversation)) is entry

    def __iter__(self) -> Iterator[Entry]:
        """Gives the entries, most recently used first."""
        return reversed(self._entries.values())

    def get(self, engine_phase: EnginePhase, conversation: ConversationHash) -> Entry | None:
        """Returns the entry, without counting as a use."""
        return self._entries.get((engine_phase, conversation))

    def list_used_before(self, use_number: int | None, worker_id: str, limit: int) -> list[Entry]:
        """Returns entries, most recently used first.

        Args:
            use_number: only those with a smaller one; None for all.
            worker_id: only those of this worker; empty for all.
            limit: at most so many.
        """
        found = (
            entry
            for entry in self
            if (use_number is None or entry.use_number < use_number)
            and (not worker_id or entry.engine_phase.key.worker_id == worker_id)
        )
        return list(islice(found, limit))

    def find(self, conversation: ConversationHash, engine_phases: Iterable[EnginePhase]) -> list[Entry]:
        """Returns the conversation's entries in these engine phases."""
        found = (self.get(engine_phase, conversation) for engine_phase in engine_phases)
        return [entry for entry in found if entry is not None]

    def add(
        self,
        engine_phase: EnginePhase,
        conversation: ConversationHash,
        tenant_tag: int,
        rank: int,
        now_s: float,
        max_entries: int,
    ) -> Entry:
        """Binds a conversation that is not in the table, and makes room for it.

        A request in flight keeps its entry, unless every entry has one.
        """
        while len(self._entries) >= max_entries:
            self._evict_one(now_s)
        self._uses += 1
        entry = Entry(engine_phase, conversation, tenant_tag, rank, 0.0, now_s, self._uses)
        engine_phase.loads.bind(rank, 0.0, now_s)
        self._entries[engine_phase, conversation] = entry
        return entry

    def use(self, entry: Entry, now_s: float) -> None:
        """Marks an entry of this table as used now."""
        self._uses += 1
        entry.resident = entry.likely_resident(now_s)
        self._mark_used(entry, now_s)

    def settle(self, entry: Entry, rank: int, resident: float, now_s: float) -> None:
        """Sets where an entry of this table is and how many tokens it keeps there; counts as a use."""
        self._uses += 1
        entry.engine_phase.loads.unbind(entry.rank, entry.likely_resident(now_s), now_s)
        entry.engine_phase.loads.bind(rank, resident, now_s)
        entry.rank, entry.resident = rank, resident
        self._mark_used(entry, now_s)

    def drop(self, entry: Entry, now_s: float) -> None:
        """Forgets an entry of this table."""
        entry.engine_phase.loads.unbind(entry.rank, entry.likely_resident(now_s), now_s)
        del self._entries[entry.engine_phase, entry.conversation]

    def expire(self, now_s: float, idle_ttl_s: float) -> None:
        """Forgets what was idle for longer; what is in flight is in use."""
        while self._entries:
            entry = self._oldest
            if now_s - entry.used_at_s <= idle_ttl_s:
                return
            if entry.in_flight:
                self.use(entry, now_s)
            else:
                self.drop(entry, now_s)
                self._on_forget("idle")

    def _evict_one(self, now_s: float) -> None:
        for _ in range(len(self._entries)):
            if not self._oldest.in_flight:
                break
            self.use(self._oldest, now_s)
        self.drop(self._oldest, now_s)
        self._on_forget("evicted")

    @property
    def _oldest(self) -> Entry:
        return next(iter(self._entries.values()))

    def _mark_used(self, entry: Entry, now_s: float) -> None:
        entry.used_at_s = now_s
        entry.use_number = self._uses
        self._entries.move_to_end((entry.engine_phase, entry.conversation))
