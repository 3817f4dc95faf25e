"""Which conversations come back, and whether they are observed where they were before.

An id that never returns can't be kept anywhere: clients that send a new one with each request show here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.counters import Counters, Labels
from sidecar.model import ConversationHash, Phase

MAX_REMEMBERED = 32_768
"""Conversations per sidecar, about 10 MB; the least recently used one is forgotten first."""


@dataclass(slots=True)
class _Sighting:
    has_returned: bool = False
    place: tuple[str, int] | None = None
    """Worker and rank that the last turn was observed on."""


class Census:
    """Remembers conversations by leg and hash.

    Args:
        counters: gets `conversations`, `returned_conversations`, and the gauge `one_shot_conversations`.
        max_remembered: how many conversations are told apart from new ones.
    """

    def __init__(self, counters: Counters, max_remembered: int = MAX_REMEMBERED) -> None:
        self._counters = counters
        self._max_remembered = max_remembered
        self._seen: OrderedDict[tuple[Phase, ConversationHash], _Sighting] = OrderedDict()
        self._one_shots: Counter[Phase] = Counter()
        counters.gauge("one_shot_conversations", self._read_one_shots)

    def note_request(self, phase: Phase, conversation: ConversationHash) -> None:
        """Takes note of a request; one without an identity has no conversation."""
        if not conversation:
            return
        sighting = self._seen.get((phase, conversation))
        if sighting is None:
            self._add(phase, conversation)
            return
        self._seen.move_to_end((phase, conversation))
        if not sighting.has_returned:
            sighting.has_returned = True
            self._one_shots[phase] -= 1
            self._counters.add("returned_conversations", _label(phase))

    def note_place(self, phase: Phase, conversation: ConversationHash, worker_id: str, rank: int) -> str:
        """Takes note of where a turn ran; returns how that compares with the turn before.

        Returns:
            `first`, `same`, `moved`; `unknown` if the conversation is not remembered.
        """
        sighting = self._seen.get((phase, conversation))
        if sighting is None:
            return "unknown"
        before, sighting.place = sighting.place, (worker_id, rank)
        if before is None:
            return "first"
        return "same" if before == sighting.place else "moved"

    def _add(self, phase: Phase, conversation: ConversationHash) -> None:
        self._seen[phase, conversation] = _Sighting()
        self._one_shots[phase] += 1
        self._counters.add("conversations", _label(phase))
        if len(self._seen) > self._max_remembered:
            (oldest_phase, _), oldest = self._seen.popitem(last=False)
            if not oldest.has_returned:
                self._one_shots[oldest_phase] -= 1

    def _read_one_shots(self) -> Iterable[tuple[Labels, float]]:
        return [((_label(phase),), count) for phase, count in sorted(self._one_shots.items())]


def _label(phase: Phase) -> tuple[str, str]:
    return ("phase", phase.name.lower())
