"""Where the last turn of each conversation ran, as the workers observe it."""

from __future__ import annotations

from collections import OrderedDict

from sidecar.model import ConversationHash, Phase

MAX_REMEMBERED = 32_768
"""Conversations per sidecar, about 10 MB; the one observed longest ago is forgotten first."""


class Whereabouts:
    """Remembers a worker and a rank for each conversation of a leg.

    Args:
        max_remembered: how many conversations are told apart from new ones.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._places: OrderedDict[tuple[Phase, ConversationHash], tuple[str, int]] = OrderedDict()

    def note(self, phase: Phase, conversation: ConversationHash, worker_id: str, rank: int) -> str:
        """Takes note of where a turn ran; returns `first`, or `same` or `moved` against the turn before."""
        key, place = (phase, conversation), (worker_id, rank)
        before = self._places.pop(key, None)
        self._places[key] = place
        if len(self._places) > self._max_remembered:
            self._places.popitem(last=False)
        if before is None:
            return "first"
        return "same" if before == place else "moved"
