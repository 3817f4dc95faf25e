"""Watches whether the ids of a carrier ever come again.

An id that never repeats names no conversation: it gains nothing, and fills the map in which an engine keeps
its conversations until the real ones fall out. A gateway that stamps a fresh id on each request does this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sidecar.model import ConversationHash

COHORT_S = 300.0
"""How long new ids are gathered; then they have as long again to repeat."""
MAX_COHORT_IDS = 16_384
"""Closes a cohort early, so that memory stays bounded."""
MIN_JUDGED_IDS = 100
"""A smaller cohort says nothing."""
DISTRUSTED_PERCENT = 90
TRUSTED_PERCENT = 75

_REPEATED = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """A carrier's ids began to be one-shot ids, or ceased to be."""

    carrier: str
    one_shot: bool
    one_shot_percent: int
    ids: int
    """How many the judgement rests on."""


@dataclass(slots=True)
class _Cohorts:
    opened_at_s: float
    young: dict[ConversationHash, int] = field(default_factory=dict)
    """The request that brought each id, or that it repeated."""
    old: dict[ConversationHash, int] = field(default_factory=dict)
    one_shot_percent: int | None = None
    """Of the last cohort that was large enough."""


class OneShotGuard:
    """Judges each carrier by cohorts of ids that were new at about the same time.

    Args:
        clock: gives seconds that never go back.

    Attributes:
        distrusted: the carriers whose ids almost never repeat.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.distrusted: frozenset[str] = frozenset()
        self._clock = clock
        self._carriers: dict[str, _Cohorts] = {}

    def observe(
        self, carrier: str, conversation: ConversationHash, request_id: str
    ) -> tuple[bool, Verdict | None]:
        """Takes note of one decision about an identity.

        Args:
            carrier: the carrier that won.
            conversation: what it named.
            request_id: both legs of a request count once; the empty one is each time another request.

        Returns:
            Whether the conversation is new, and what changed about the carrier, if anything did.
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
        # A hash of Python's own is never -1, which stands for a repetition.
        request = hash(request_id) if request_id else 0
        if first is None:
            cohorts.young[conversation] = request
            return True, verdict
        if first != request or not request:
            cohort[conversation] = _REPEATED
        return False, verdict

    def list_shares(self) -> Iterator[tuple[str, int]]:
        """Gives each judged carrier with the percentage of its ids that were seen in one request only."""
        for carrier, cohorts in self._carriers.items():
            if cohorts.one_shot_percent is not None:
                yield carrier, cohorts.one_shot_percent

    def _close(self, carrier: str, cohorts: _Cohorts, now_s: float) -> Verdict | None:
        judged = cohorts.old
        cohorts.old, cohorts.young, cohorts.opened_at_s = cohorts.young, {}, now_s
        if len(judged) < MIN_JUDGED_IDS:
            return None
        percent = 100 * sum(first != _REPEATED for first in judged.values()) // len(judged)
        cohorts.one_shot_percent = percent
        was_one_shot = carrier in self.distrusted
        is_one_shot = percent >= (TRUSTED_PERCENT if was_one_shot else DISTRUSTED_PERCENT)
        if is_one_shot is was_one_shot:
            return None
        self.distrusted ^= {carrier}
        return Verdict(carrier, is_one_shot, percent, len(judged))
