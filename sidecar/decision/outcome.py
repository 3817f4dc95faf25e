"""What became of requests, as their workers report it: applied, attached, and honored by the engine."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from routing_hints import tokens
from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import LabelValues, MetricStore
from routing_hints.vocabulary import (
    AdpRouter,
    FinishOutcome,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
)
from sidecar.decision.recorder import Record
from sidecar.model import FinishReport
from sidecar.telemetry import metrics

RECENT_REQUESTS = 200
"""Requests of a phase whose share of affinity is shown."""
MAX_REMEMBERED = 32_768
"""Conversations whose last rank is remembered, about 10 MB; the one observed longest ago is forgotten
first."""

_UNKNOWN = "unknown"
_DIRECTIVES = {directive.value: directive.name.lower() for directive in RankDirective}
_OUTCOMES = {outcome.value: outcome.name.lower() for outcome in FinishOutcome if outcome} | {0: "completed"}
_BOOLEANS = {True: "true", False: "false"}
# Made once, not for each finish report: reading the name of an enum member takes longer than a lookup.
_PLACEMENTS = {placement: placement.name.lower() for placement in PlacementState}
_PHASES = {phase: phase.name.lower() for phase in Phase}


class OutcomeLog:
    """Counts finish reports, and judges by them whether conversations can return to their rank."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._last_ranks = LastRankIndex()
        self._recent: dict[Phase, deque[bool]] = {}
        store.set_reader(metrics.AFFINITY_ACTIVE, self._read_active_shares)
        store.add(metrics.WITHHELD_WITHOUT_ID, amount=0)

    def take(self, report: FinishReport, record: Record | None) -> None:
        """Counts one report.

        Args:
            report: as the worker sent it.
            record: the decision that it belongs to; None if that is no longer recorded.
        """
        applied = _DIRECTIVES.get(report.applied_directive, _UNKNOWN)
        outcome = _OUTCOMES.get(report.outcome, _UNKNOWN)
        self._store.add(metrics.FINISHES, outcome, applied, _BOOLEANS[report.id_attached])
        if report.local_reason:
            self._store.add(metrics.LOCAL_REASONS, tokens.label_reported_reason(report.local_reason))
        if record is None:
            self._store.add(metrics.UNMATCHED_FINISHES)
            return
        request = record.request
        labels = (applied, _PLACEMENTS[record.decision.placement], _PHASES[request.phase])
        self._store.add(metrics.CONVERSATION_RETURNS, *labels, self._compare_rank(report, record))
        if report.cached_tokens is not None and request.prompt_tokens:
            self._store.add(metrics.CACHED_TOKENS, *labels, amount=report.cached_tokens)
            self._store.add(metrics.PROMPT_TOKENS, *labels, amount=request.prompt_tokens)
        if request.kind.is_normal and report.applied_directive:
            self._judge_affinity(report, record)

    def _compare_rank(self, report: FinishReport, record: Record) -> str:
        conversation, rank = record.decision.conversation_hash, report.observed_dp_rank
        if rank is None or not conversation:
            return _UNKNOWN
        request = record.request
        return self._last_ranks.note(request.phase, conversation, request.worker_id, rank)

    def _judge_affinity(self, report: FinishReport, record: Record) -> None:
        engine, phase = record.request.engine, record.request.phase
        withheld = report.applied_directive == RankDirective.WITHHOLD
        # That router probes each rank's cache for the prefix and needs no id for it.
        if withheld and not report.id_attached and engine.adp_router is not AdpRouter.KV_CACHE_AWARE:
            self._store.add(metrics.WITHHELD_WITHOUT_ID)
        recent = self._recent.get(phase)
        if recent is None:
            recent = self._recent[phase] = deque(maxlen=RECENT_REQUESTS)
        recent.append(_is_affine(report, record))

    def _read_active_shares(self) -> Iterable[tuple[LabelValues, float]]:
        return [
            ((_PHASES[phase],), sum(recent) / len(recent)) for phase, recent in sorted(self._recent.items())
        ]


def _is_affine(report: FinishReport, record: Record) -> bool:
    """Returns whether a request went out so that its conversation can return to its rank.

    Either the sidecar placed it, or its id is attached and no rank is forced over the engine's router; a rank
    of the upstream router counts as forced unless the operator states that the engine records it.
    """
    if not record.decision.conversation_hash:
        return False
    if report.applied_directive == RankDirective.PLACE:
        return True
    is_forced = (
        report.applied_directive == RankDirective.FORWARD
        and record.request.router_rank is not None
        and record.request.engine.rank_source is not RankSource.ROUTER
    )
    return report.id_attached and not is_forced


class LastRankIndex:
    """Remembers the worker and rank of each conversation's last turn, by phase.

    Args:
        max_remembered: conversations that are told apart from new ones.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._places: OrderedDict[tuple[Phase, ConversationHash], tuple[str, int]] = OrderedDict()

    def note(self, phase: Phase, conversation: ConversationHash, worker_id: str, rank: int) -> str:
        """Remembers where a turn ran; returns `first`, or `same` or `moved` against the turn before."""
        key, place = (phase, conversation), (worker_id, rank)
        before = self._places.pop(key, None)
        self._places[key] = place
        if len(self._places) > self._max_remembered:
            self._places.popitem(last=False)
        if before is None:
            return "first"
        return "same" if before == place else "moved"
