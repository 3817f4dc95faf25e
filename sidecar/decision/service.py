"""One decision with its side effects: placed, recorded, counted, and where asked for logged and traced."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from routing_hints.v1 import service_pb2
from sidecar.decision.cache import Resolver
from sidecar.decision.conversation_end import Lifecycle
from sidecar.decision.decide import apply_placement, explain
from sidecar.decision.decision_log import DecisionLog
from sidecar.decision.recorder import Recorder
from sidecar.identity.carrier_monitor import IdentityWatch
from sidecar.model import (
    Answer,
    Decision,
    Explanation,
    IdentitySource,
    Phase,
    Query,
    RankDirective,
    RankSource,
    RequestKind,
)
from sidecar.placement.placement import Placement, Proposal, Ticket
from sidecar.policy.compiled import CompiledPolicy, PlacementSettings
from sidecar.policy.holder import PolicyHolder
from sidecar.telemetry.counters import Counters, Labels
from sidecar.telemetry.tracing import DecisionTracer
from sidecar.wire.request_codec import UNKNOWN_CALLER, Caller, decode_query
from sidecar.wire.response_codec import encode_answer


class Decider:
    """Decides by the policy in force.

    Args:
        holder: gives the policy.
        placement: chooses ranks.
        recorder: keeps the decisions.
        counters: counts them.
        watch: hears of every identity, and says whose ids are not to be attached.
        lifecycle: hears of last requests.
        observe_latency_s: gets the seconds that a decision took.
        tracer: None makes no spans.
    """

    def __init__(
        self,
        holder: PolicyHolder,
        placement: Placement,
        recorder: Recorder,
        counters: Counters,
        watch: IdentityWatch,
        lifecycle: Lifecycle,
        observe_latency_s: Callable[[float], None],
        tracer: DecisionTracer | None,
    ) -> None:
        self._holder = holder
        self._placement = placement
        self._recorder = recorder
        self._counters = counters
        self._watch = watch
        self._lifecycle = lifecycle
        self._observe_latency_s = observe_latency_s
        self._tracer = tracer
        self._log = DecisionLog()
        self._resolver = Resolver()

    def decide(
        self,
        request: service_pb2.EnrichRequest,
        response: service_pb2.EnrichResponse,
        caller: Caller = UNKNOWN_CALLER,
        item: tuple[int, int] | None = None,
    ) -> None:
        """Fills in the answer to a request.

        Args:
            request: as it came.
            response: empty; nothing is set where this raises `FieldError`.
            caller: who sent it, as far as a stream's hello said.
            item: stream and `seq` that its Finish will name.

        Raises:
            FieldError: a field breaks its documented range.
        """
        started_s = time.perf_counter()
        policy = self._holder.current.compiled
        distrusted = self._watch.list_distrusted(policy)
        query, answer, encoded = self._resolver.resolve(request, caller, policy, distrusted)
        proposal = None
        if answer.directive is RankDirective.PLACE:
            self._placement.expire(policy.placement)
            proposal, answer = self._propose(query, answer, policy.placement)
        decision_id = self._recorder.record(query, answer, item)
        if proposal is not None:
            ticket = Ticket(decision_id, item) if item is not None else None
            self._placement.commit(proposal, policy.placement, ticket)
        if encoded:
            response.MergeFromString(encoded)
        else:
            response.CopyFrom(encode_answer(answer, ""))
        response.decision_id = decision_id
        took_s = time.perf_counter() - started_s
        self._observe_latency_s(took_s)
        self._count(query, answer, policy)
        if answer.source is not IdentitySource.NONE and query.kind <= RequestKind.NORMAL:
            self._watch.note(query, answer, policy)
            self._lifecycle.on_decision(answer, has_finish=item is not None)
        if policy.logged_buckets:
            self._log.write(query, answer, decision_id, policy)
        if self._tracer is not None:
            now_ns = time.time_ns()
            self._tracer.trace(query, answer, decision_id, now_ns - int(took_s * 1e9), now_ns)

    def explain(self, request: service_pb2.EnrichRequest) -> Explanation:
        """Returns what `decide` would answer now, and changes nothing; raises as it does."""
        query = decode_query(request)
        compiled = self._holder.current.compiled
        explanation = explain(query, compiled, self._watch.list_distrusted(compiled))
        if explanation.answer.directive is not RankDirective.PLACE:
            return explanation
        _, answer = self._propose(query, explanation.answer, compiled.placement)
        return Explanation(answer, explanation.carriers, explanation.rules)

    def _propose(
        self, query: Query, answer: Answer, settings: PlacementSettings
    ) -> tuple[Proposal | None, Answer]:
        key = answer.placement_key
        proposal = None if key is None else self._placement.propose(query, key, settings)
        if proposal is None:
            return None, apply_placement(query, answer, None, Decision.NONE)
        return proposal, apply_placement(query, answer, proposal.rank, proposal.decision)

    def _count(self, query: Query, answer: Answer, policy: CompiledPolicy) -> None:
        labels = _label(answer.decision, answer.directive, policy.mode, query.phase, answer.source)
        self._counters.add("decisions", *labels)
        for notice in answer.notices:
            self._counters.add("notices", ("notice", notice))
        if query.router_rank is not None and query.engine.rank_source is RankSource.SIDECAR:
            self._count_disagreement(query, answer, policy.placement)

    def _count_disagreement(self, query: Query, answer: Answer, settings: PlacementSettings) -> None:
        is_placed = answer.dp_rank is not None
        rank = (
            answer.dp_rank
            if is_placed
            else self._placement.find_rank(query, answer.conversation_hash, settings)
        )
        if rank is not None and rank != query.router_rank:
            self._counters.add("router_rank_disagreement", ("kept", "sidecar" if is_placed else "router"))


@lru_cache(maxsize=1_024)
def _label(
    decision: Decision, directive: RankDirective, mode: str, phase: Phase, source: IdentitySource
) -> Labels:
    return (
        ("decision", decision.name.lower()),
        ("directive", directive.name.lower()),
        ("mode", mode),
        ("phase", phase.name.lower()),
        ("source", source.name.lower()),
    )
