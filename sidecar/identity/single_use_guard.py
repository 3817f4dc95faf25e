"""Detects carriers whose ids are single-use.

An id that never repeats identifies no conversation. Attaching it gains nothing, and evicts real conversations
from the engine's bounded map. A gateway that stamps a new id on each request causes this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from routing_hints.conversation_id import ConversationHash

COHORT_S = 300.0
"""Seconds during which new ids join a cohort; then they have as long again to repeat."""
MAX_COHORT_IDS = 16_384
"""A cohort of this size closes early, which bounds memory."""
MIN_JUDGED_IDS = 100
"""A smaller cohort is not judged."""
SUSPENDED_PERCENT = 90
RESUMED_PERCENT = 75

_REPEATED = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """A carrier's ids became single-use, or ceased to be."""

    carrier: str
    single_use: bool
    single_use_percent: int
    ids: int
    """Size of the judged cohort."""


@dataclass(slots=True)
class _Cohorts:
    opened_at_s: float
    young: dict[ConversationHash, int] = field(default_factory=dict)
    """For each id a hash of its first request's id, or `_REPEATED`."""
    old: dict[ConversationHash, int] = field(default_factory=dict)
    single_use_percent: int | None = None
    """Of the last judged cohort; None before the first."""
    young_is_complete: bool = True
    """Whether every request of these ids was seen."""
    old_is_complete: bool = True


class SingleUseGuard:
    """Judges each carrier by cohorts of ids that were new at about the same time.

    Args:
        clock: returns monotonic seconds.

    Attributes:
        suspended: the carriers whose ids almost never repeat.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.suspended: frozenset[str] = frozenset()
        self._clock = clock
        self._carriers: dict[str, _Cohorts] = {}

    def observe(
        self, carrier: str, conversation: ConversationHash, request_id: str
    ) -> tuple[bool, Verdict | None]:
        """Records one decision that has a conversation id.

        Args:
            carrier: the selected carrier.
            conversation: the conversation that it named.
            request_id: shared by the phases of a request, which count once; each empty one counts as new.

        Returns:
            Whether the conversation is new, and the verdict if the carrier's state changed.
        """
        now_s = self._clock()
        cohorts = self._carriers.get(carrier)
        if cohorts is None:
            cohorts = self._carriers[carrier] = _Cohorts(now_s)
        verdict = None
        if now_s - cohorts.opened_at_s >= COHORT_S or len(cohorts.young) >= MAX_COHORT_IDS:
            verdict = self._close(carrier, cohorts, now_s)
        cohort = cohorts.young if conversation in cohorts.young else cohorts.old
        first = cohort.get(conversation)
        # Python's hash() is never -1, so it can't equal _REPEATED.
        request = hash(request_id) if request_id else 0
        if first is None:
            cohorts.young[conversation] = request
            return True, verdict
        if first != request or not request:
            cohort[conversation] = _REPEATED
        return False, verdict

    def note_lost(self, carrier: str) -> bool:
        """Records that requests of a carrier were not seen, so that its present cohorts are never judged.

        Returns:
            Whether the carrier is known.
        """
        cohorts = self._carriers.get(carrier)
        if cohorts is None:
            return False
        cohorts.young_is_complete = cohorts.old_is_complete = False
        return True

    def list_shares(self) -> Iterator[tuple[str, int]]:
        """Yields each judged carrier and the percentage of its ids that were seen in one request only."""
        for carrier, cohorts in self._carriers.items():
            if cohorts.single_use_percent is not None:
                yield carrier, cohorts.single_use_percent

    def _close(self, carrier: str, cohorts: _Cohorts, now_s: float) -> Verdict | None:
        judged, is_complete = cohorts.old, cohorts.old_is_complete
        cohorts.old, cohorts.young, cohorts.opened_at_s = cohorts.young, {}, now_s
        cohorts.old_is_complete, cohorts.young_is_complete = cohorts.young_is_complete, True
        if len(judged) < MIN_JUDGED_IDS or not is_complete:
            return None
        percent = 100 * sum(first != _REPEATED for first in judged.values()) // len(judged)
        cohorts.single_use_percent = percent
        was_single_use = carrier in self.suspended
        is_single_use = percent >= (RESUMED_PERCENT if was_single_use else SUSPENDED_PERCENT)
        if is_single_use is was_single_use:
            return None
        self.suspended ^= {carrier}
        return Verdict(carrier, is_single_use, percent, len(judged))
