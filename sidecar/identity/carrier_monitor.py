"""Counts conversation ids by carrier, and logs when a carrier's ids become or cease to be single-use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog

from routing_hints.metrics import LabelValues, MetricStore
from sidecar.identity.single_use_guard import SingleUseGuard, Verdict
from sidecar.model import Decision, Request
from sidecar.telemetry import metrics

_NONE: frozenset[str] = frozenset()


class CarrierMonitor:
    """Watches the carriers that name conversations.

    Args:
        store: gets the metrics.
        clock: returns monotonic seconds.
    """

    def __init__(self, store: MetricStore, clock: Callable[[], float]) -> None:
        self._guard = SingleUseGuard(clock)
        self._store = store
        self._log = structlog.get_logger("sidecar")
        store.set_reader(metrics.SINGLE_USE_RATIO, self._read_shares)

    def list_suspended(self, *, suspends: bool) -> frozenset[str]:
        """Returns the carriers whose ids are not attached; none unless the policy suspends carriers."""
        return self._guard.suspended if suspends else _NONE

    def record(self, request: Request, decision: Decision, *, suspends: bool) -> None:
        """Records one decision that has a conversation id.

        Args:
            request: the request.
            decision: the decision; its `source_detail` is the selected carrier.
            suspends: whether the policy suspends carriers of single-use ids.
        """
        carrier = decision.source_detail
        is_new, verdict = self._guard.observe(carrier, decision.conversation_hash, request.request_id)
        self._store.add(metrics.IDENTITIES, carrier)
        if is_new:
            self._store.add(metrics.DISTINCT_IDS, carrier)
        if verdict is not None:
            self._report(verdict, suspends=suspends)

    def record_dropped(self, carrier: str, count: int) -> None:
        """Counts requests that a client applied remembered decisions to and could not send."""
        if self._guard.note_lost(carrier):
            self._store.add(metrics.DROPPED_REQUESTS, carrier, amount=count)

    def _read_shares(self) -> Iterator[tuple[LabelValues, float]]:
        for carrier, percent in self._guard.list_shares():
            yield (carrier,), percent / 100

    def _report(self, verdict: Verdict, *, suspends: bool) -> None:
        if not verdict.single_use:
            self._log.info(
                "single_use_ids_ended", carrier=verdict.carrier, percent=verdict.single_use_percent
            )
            return
        self._store.add(metrics.SINGLE_USE_REPORTS, verdict.carrier)
        self._log.warning(
            "single_use_ids",
            carrier=verdict.carrier,
            percent=verdict.single_use_percent,
            ids=verdict.ids,
            attached=not suspends,
        )
