"""Counts identities by carrier and says when a carrier's ids almost never come again."""

from __future__ import annotations

import structlog

from sidecar.identity.single_use_guard import OneShotGuard, Verdict
from sidecar.model import Answer, Query
from sidecar.policy.compiled import CompiledPolicy
from sidecar.telemetry.counters import Counters

_NONE: frozenset[str] = frozenset()


class IdentityWatch:
    """Hears of every decision about an identity."""

    def __init__(self, guard: OneShotGuard, counters: Counters) -> None:
        self._guard = guard
        self._counters = counters
        self._log = structlog.get_logger("sidecar")

    def list_distrusted(self, policy: CompiledPolicy) -> frozenset[str]:
        """Returns the carriers whose ids are not to be attached."""
        return self._guard.distrusted if policy.enforces_guard else _NONE

    def note(self, query: Query, answer: Answer, policy: CompiledPolicy) -> None:
        """Takes note of one decision about an identity."""
        carrier = ("carrier", answer.source_detail)
        is_new, verdict = self._guard.observe(
            answer.source_detail, answer.conversation_hash, query.request_id
        )
        self._counters.add("identities", carrier)
        if is_new:
            self._counters.add("distinct_ids", carrier)
        if verdict is not None:
            self._report(verdict, policy)

    def _report(self, verdict: Verdict, policy: CompiledPolicy) -> None:
        if not verdict.one_shot:
            self._log.info("one_shot_ids_ended", carrier=verdict.carrier, percent=verdict.one_shot_percent)
            return
        self._counters.add("one_shot_reports", ("carrier", verdict.carrier))
        self._log.warning(
            "one_shot_ids",
            carrier=verdict.carrier,
            percent=verdict.one_shot_percent,
            ids=verdict.ids,
            attached=not policy.enforces_guard,
        )
