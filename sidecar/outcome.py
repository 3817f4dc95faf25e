"""What became of requests, as their workers report it: applied, attached, and honoured by the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sidecar.counters import Counters, Labels
from sidecar.local_reason import label_reason
from sidecar.model import AdpRouter, FinishReport, Phase, RankDirective, RankSource
from sidecar.recorder import Record
from sidecar.whereabouts import Whereabouts

RECENT_REQUESTS = 200
"""So many requests of a leg make up its share of affinity."""

_PHASES = {phase.value: phase for phase in Phase}
_DIRECTIVES = {directive.value: directive for directive in RankDirective}
# An outcome that is not set is a completed one.
_OUTCOME_LABELS = {0: "completed", 1: "completed", 2: "failed", 3: "cancelled"}


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
        directive = _DIRECTIVES.get(report.applied_directive)
        applied = ("applied_directive", "unknown" if directive is None else directive.name.lower())
        self._counters.add(
            "finishes",
            applied,
            ("id_attached", "true" if report.id_attached else "false"),
            ("outcome", _OUTCOME_LABELS.get(report.outcome, "unknown")),
        )
        if report.local_reason:
            self._counters.add("local_reasons", ("reason", label_reason(report.local_reason)))
        if record is None:
            self._counters.add("unmatched_finishes")
            return
        phase = ("phase", _PHASES.get(record.phase, Phase.UNSPECIFIED).name.lower())
        labels = (applied, ("decision", record.answer.decision.name.lower()), phase)
        self._count_effect(report, record, labels)
        if report.cached_tokens is not None and record.prompt_tokens:
            self._counters.add("cached_tokens", *labels, amount=report.cached_tokens)
            self._counters.add("prompt_tokens", *labels, amount=record.prompt_tokens)
        if record.is_normal and directive not in (None, RankDirective.UNSPECIFIED):
            self._judge_affinity(report, record)

    def _count_effect(self, report: FinishReport, record: Record, labels: Labels) -> None:
        effect = "unknown"
        conversation = record.answer.conversation_hash
        if report.observed_dp_rank is not None and conversation:
            effect = self._whereabouts.note(
                _PHASES[record.phase], conversation, record.worker_id, report.observed_dp_rank
            )
        self._counters.add("effects", *labels, ("effect", effect))

    def _judge_affinity(self, report: FinishReport, record: Record) -> None:
        withheld = report.applied_directive == RankDirective.WITHHOLD
        # That router probes each rank's cache for the prefix and needs no id for it.
        if withheld and not report.id_attached and record.engine.adp_router is not AdpRouter.KV_CACHE_AWARE:
            self._counters.add("withheld_without_id")
        recent = self._recent.setdefault(_PHASES[record.phase], deque(maxlen=RECENT_REQUESTS))
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
        and record.router_rank is not None
        and record.engine.rank_source is not RankSource.ROUTER
    )
    return report.id_attached and not is_forced
