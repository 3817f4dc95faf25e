"""What becomes of plans: counted, logged once, and reported to the sidecar."""

from __future__ import annotations

from collections.abc import Callable

from routing_hints import tokens
from routing_hints.metrics import MetricStore
from routing_hints.vocabulary import FinishOutcome, Phase, RankDirective
from worker_client import _codec, _metrics
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams
from worker_client._memory import Memory, MemoryKey
from worker_client._model import ClientPolicy
from worker_client._observation import RankChange, RankTracker
from worker_client._once_logger import OnceLogger
from worker_client._pending_request import PendingRequest
from worker_client._plan import PlanRecord
from worker_client._transport import Transport


class PlanReporter:
    """The client's `PlanListener`.

    Args:
        store: counts.
        once_logger: logs.
        transport: takes finish reports.
        get_policy: gives the sidecar's policy, as last received.
        memory: is corrected by what is observed.
        max_conversations: whose last ranks are remembered.
    """

    def __init__(
        self,
        store: MetricStore,
        once_logger: OnceLogger,
        transport: Transport,
        get_policy: Callable[[], ClientPolicy],
        memory: Memory,
        max_conversations: int,
    ) -> None:
        self._store = store
        self._once_logger = once_logger
        self._transport = transport
        self._get_policy = get_policy
        self._memory = memory
        self._tracker = RankTracker(max_conversations)

    def on_params(self, record: PlanRecord, params: EngineParams) -> None:
        """Counts and logs what goes out."""
        self._store.add(_metrics.APPLIED, params.applied_directive.name.lower())
        if params.reason:
            self._store.add(_metrics.PLAN_DEVIATIONS, params.reason)
        if record.gated is None:
            return
        phase, decision = record.facts.phase, record.decision
        if params.id_attached:
            self._store.add(_metrics.ID_ATTACHED, phase.name.lower())
        if not decision.conversation_hash:
            return
        if params.id_attached or params.applied_directive is RankDirective.PLACE:
            plain_ids = self._get_policy().log_plain_ids
            self._once_logger.log_active(phase, decision, record.gated.profile, params, plain_ids=plain_ids)
            return
        causes = filter(tokens.explains_missing_id, decision.notices)
        reason = params.reason or next(causes, "") or explain_unattached(record.gated.profile)
        self._store.add(_metrics.ID_NOT_ATTACHED, reason)
        if record.gated.is_affinity_wanted and not tokens.is_intended(reason):
            self._once_logger.log_inactive(phase, decision, reason)

    def on_finish(self, record: PlanRecord, outcome: FinishOutcome) -> None:
        """Reports the end of a request, and logs what it shows."""
        self._store.add(_metrics.FINISHED, outcome.name.lower())
        decision, observed, phase = record.decision, record.observation, record.facts.phase
        is_directed = record.id_attached or record.applied_directive is RankDirective.PLACE
        rank_change = self._tracker.track(
            phase, decision.conversation_hash, observed, is_directed=is_directed
        )
        labels = (record.applied_directive.name.lower(), decision.placement.name.lower())
        self._store.add(_metrics.CONVERSATION_RETURNS, *labels, rank_change.value)
        if observed.cached_tokens is not None:
            self._store.add(_metrics.CACHED_TOKENS, *labels, amount=observed.cached_tokens)
            self._store.add(_metrics.PROMPT_TOKENS, *labels, amount=record.facts.prompt_tokens)
        if record.pending is not None:
            self._transport.finish(record.pending, _codec.encode_finish(record, outcome))
            self._correct_memory(record, record.pending.key, outcome)
        if not is_directed:
            return
        if rank_change is RankChange.SAME and observed.rank is not None:
            self._once_logger.log_confirmed(phase, decision, observed.rank)
        if self._tracker.is_moving(phase):
            self._once_logger.log_not_honored(phase)

    def _correct_memory(self, record: PlanRecord, key: MemoryKey, outcome: FinishOutcome) -> None:
        """Ends reuse of a conversation that ran elsewhere or failed; learns where an undecided one ran."""
        rank = record.observation.rank if record.facts.phase is not Phase.DECODE else None
        applied_rank = record.params.rank if record.params is not None else None
        is_placed = record.applied_directive is RankDirective.PLACE
        is_elsewhere = is_placed and rank is not None and rank != applied_rank
        if is_elsewhere or outcome is FinishOutcome.FAILED:
            self._memory.block(key)
        if record.reason and rank is not None and record.decision.dp_rank is None:
            self._memory.note_rank(key, rank)

    def on_internal_error(self, error: Exception) -> None:
        """Counts and logs an error that the request did not feel."""
        self._store.add(_metrics.INTERNAL_ERRORS, type(error).__name__)
        self._once_logger.log_internal_error(error)

    def report_cancelled(self, pending: PendingRequest) -> None:
        """Reports a request whose caller was cancelled while it waited."""
        self._store.add(_metrics.FINISHED, "cancelled")
        self._transport.finish(pending, _codec.encode_cancelled(pending.facts))


def explain_unattached(engine: EngineProfile) -> str:
    """Returns why an engine is passed no conversation id, in the sidecar's tokens."""
    if not engine.dialect.carries_conversation_id:
        return tokens.DIALECT_CANNOT_CARRY_ID
    if not engine.adp_router.is_known:
        return tokens.ADP_ROUTER_UNKNOWN
    return tokens.ROUTER_PINS_NOTHING
