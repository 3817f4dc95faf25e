"""What became of requests, as their workers report it: applied, attached, and honoured by the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sidecar.decision.local_reason import label_reason
from sidecar.decision.recorder import Record
from sidecar.decision.whereabouts import Whereabouts
from sidecar.model import AdpRouter, Decision, FinishReport, Phase, RankDirective, RankSource
from sidecar.telemetry.counters import Counters, Labels

RECENT_REQUESTS = 200
"""So many requests of a leg make up its share of affinity."""

_TOLD = {directive.value for directive in RankDirective if directive is not RankDirective.UNSPECIFIED}
_UNKNOWN = "unknown"
_APPLIED = {directive.value: ("applied_directive", directive.name.lower()) for directive in RankDirective}
_ATTACHED = {True: ("id_attached", "true"), False: ("id_attached", "false")}
# An outcome that is not set is a completed one.
_OUTCOMES = {
    number: ("outcome", name) for number, name in enumerate(("completed", "completed", "failed", "cancelled"))
}
_DECISION_LABELS = {decision: ("decision", decision.name.lower()) for decision in Decision}
_PHASE_LABELS = {phase: ("phase", phase.name.lower()) for phase in Phase}


class OutcomeLog:
    """Counts the ends of requests.

    Args:
        counters: gets every counter of docs/reference.md that is about ends, and `affinity_active`.
        whereabouts: knows where conversations were before.
    """

    def __init__(self, counters: Counters, whereabouts: Whereabouts) -> None:
        self._counters = counters
        self._whereabouts = whereabouts
        self._recent: dict[Phase, deque[bool]] = {}
        counters.gauge("affinity_active", self._read_active_shares)
        counters.declare("withheld_without_id")

    def take(self, report: FinishReport, record: Record | None) -> None:
        """Counts one end.

        Args:
            report: what the worker says.
            record: the decision that it belongs to; None if that is not known any more.
        """
        applied = _APPLIED.get(report.applied_directive, ("applied_directive", _UNKNOWN))
        outcome = _OUTCOMES.get(report.outcome, ("outcome", _UNKNOWN))
        self._counters.add("finishes", applied, _ATTACHED[report.id_attached], outcome)
        if report.local_reason:
            self._counters.add("local_reasons", ("reason", label_reason(report.local_reason)))
        if record is None:
            self._counters.add("unmatched_finishes")
            return
        labels = (applied, _DECISION_LABELS[record.answer.decision], _PHASE_LABELS[record.query.phase])
        self._count_effect(report, record, labels)
        if report.cached_tokens is not None and record.query.prompt_tokens:
            self._counters.add("cached_tokens", *labels, amount=report.cached_tokens)
            self._counters.add("prompt_tokens", *labels, amount=record.query.prompt_tokens)
        if record.is_normal and report.applied_directive in _TOLD:
            self._judge_affinity(report, record)

    def _count_effect(self, report: FinishReport, record: Record, labels: Labels) -> None:
        effect = _UNKNOWN
        conversation = record.answer.conversation_hash
        if report.observed_dp_rank is not None and conversation:
            effect = self._whereabouts.note(
                record.query.phase, conversation, record.query.worker_id, report.observed_dp_rank
            )
        self._counters.add("effects", *labels, ("effect", effect))

    def _judge_affinity(self, report: FinishReport, record: Record) -> None:
        withheld = report.applied_directive == RankDirective.WITHHOLD
        # That router probes each rank's cache for the prefix and needs no id for it.
        if (
            withheld
            and not report.id_attached
            and record.query.engine.adp_router is not AdpRouter.KV_CACHE_AWARE
        ):
            self._counters.add("withheld_without_id")
        phase = record.query.phase
        recent = self._recent.get(phase)
        if recent is None:
            recent = self._recent[phase] = deque(maxlen=RECENT_REQUESTS)
        recent.append(_is_affine(report, record))

    def _read_active_shares(self) -> Iterable[tuple[Labels, float]]:
        return [
            ((("phase", phase.name.lower()),), sum(recent) / len(recent))
            for phase, recent in sorted(self._recent.items())
        ]


def _is_affine(report: FinishReport, record: Record) -> bool:
    """Tells whether a request went out so that its conversation can return to its rank.

    Either the sidecar placed it, or its id is attached and no rank is forced over the engine's router; a
    rank of the router in front counts as forced unless the operator says that the engine records it.
    """
    if not record.answer.conversation_hash:
        return False
    if report.applied_directive == RankDirective.PLACE:
        return True
    is_forced = (
        report.applied_directive == RankDirective.FORWARD
        and record.query.router_rank is not None
        and record.query.engine.rank_source is not RankSource.ROUTER
    )
    return report.id_attached and not is_forced
