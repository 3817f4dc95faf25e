"""What becomes of plans: counted, announced, and reported to the sidecar."""

from __future__ import annotations

from worker_client import codec
from worker_client._call import Question
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams
from worker_client._model import AdpRouter, EngineDialect, FinishOutcome, RankDirective
from worker_client._observation import Effect, RankTracker
from worker_client._once_logger import Announcer
from worker_client._plan import Plan
from worker_client._stats import Stats
from worker_client._transport import Transport

_BY_OPERATOR = frozenset({"outside-rollout", "placement-phase-off"})
"""Reasons for attaching no id that are the operator's will and nothing to warn about."""

_REMARKS = frozenset({"session-final"})
"""Notices that are no reason for anything."""


class Journal:
    """Hears of every plan, as its `PlanListener`."""

    def __init__(
        self, *, stats: Stats, announcer: Announcer, transport: Transport, max_conversations: int
    ) -> None:
        self._stats = stats
        self._announcer = announcer
        self._transport = transport
        self._tracker = RankTracker(max_conversations)

    def on_params(self, plan: Plan, params: EngineParams) -> None:
        """Counts and announces what goes out."""
        self._stats.count("applied", params.applied_directive.name.lower())
        if params.reason:
            self._stats.count("differs", params.reason)
        if plan.gated is None:
            return
        if params.id_attached:
            self._stats.count("id_attached", plan.phase.name.lower())
        if not plan.conversation_hash:
            return
        if params.id_attached or params.applied_directive is RankDirective.PLACE:
            plain = self._transport.policy.log_plain_ids
            self._announcer.announce_active(
                plan.phase, plan.answer, plan.gated.profile, params, plain_ids=plain
            )
        else:
            causes = (notice for notice in plan.answer.notices if notice not in _REMARKS)
            reason = params.reason or next(causes, "")
            reason = reason or explain_unattached(plan.gated.profile)
            self._stats.count("id_not_attached", reason)
            if plan.gated.is_affinity_wanted and reason not in _BY_OPERATOR:
                self._announcer.announce_inactive(plan.phase, plan.answer, reason)

    def on_finish(self, plan: Plan, outcome: FinishOutcome) -> None:
        """Reports the end of a request, and announces what it shows."""
        self._stats.count("finished", outcome.name.lower())
        observed = plan.observation
        is_told = plan.params is not None and (
            plan.params.id_attached or plan.applied_directive is RankDirective.PLACE
        )
        effect = self._tracker.track(plan.phase, plan.conversation_hash, observed, is_engine_told=is_told)
        label = f"{plan.applied_directive.name}/{plan.answer.decision.name}".lower()
        self._stats.count("effect", f"{label}/{effect.value}")
        if observed.cached_tokens is not None:
            self._stats.count("cached_tokens", label, observed.cached_tokens)
            self._stats.count("prompt_tokens", label, plan.facts.prompt_tokens)
        if plan.question is not None:
            self._report(plan.question, plan, outcome)
        if not is_told:
            return
        if effect is Effect.SAME and observed.rank is not None:
            self._announcer.announce_confirmed(plan.phase, plan.answer, observed.rank)
        if self._tracker.is_moving(plan.phase):
            self._announcer.announce_not_honoured(plan.phase)

    def on_defect(self, error: Exception) -> None:
        """Counts and logs a defect that the request did not feel."""
        self._stats.count("defects", type(error).__name__)
        self._announcer.announce_defect(error)

    def report_cancelled(self, question: Question) -> None:
        """Reports a request whose caller went away while it was asked about."""
        self._stats.count("finished", "cancelled")
        finish = codec.encode_finish(
            request_id=question.facts.request_id,
            phase=question.facts.phase,
            decision_id="",
            outcome=FinishOutcome.CANCELLED,
            applied_directive=RankDirective.UNSPECIFIED,
            id_attached=False,
            local_reason="cancelled-while-asking",
            observed_rank=None,
            cached_tokens=None,
        )
        self._transport.finish(question, finish)

    def _report(self, question: Question, plan: Plan, outcome: FinishOutcome) -> None:
        finish = codec.encode_finish(
            request_id=question.facts.request_id,
            phase=question.facts.phase,
            decision_id=plan.answer.decision_id,
            outcome=outcome,
            applied_directive=plan.applied_directive,
            id_attached=plan.params is not None and plan.params.id_attached,
            local_reason=(plan.params.reason if plan.params is not None else "") or plan.reason,
            observed_rank=plan.observation.rank,
            cached_tokens=plan.observation.cached_tokens,
        )
        self._transport.finish(question, finish)


def explain_unattached(engine: EngineProfile) -> str:
    """Returns why an engine is told no conversation, in the sidecar's tokens."""
    if engine.dialect in (EngineDialect.UNSPECIFIED, EngineDialect.RANK_ONLY):
        return "dialect-cannot-carry-id"
    if engine.adp_router in (AdpRouter.UNSPECIFIED, AdpRouter.UNKNOWN):
        return "adp-router-unknown"
    return "router-pins-nothing"
