"""Where requests are decided: each decision with its effects, and what follows from how the request ended."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import lru_cache
from typing import NamedTuple

from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import LabelValues, MetricStore
from routing_hints.vocabulary import (
    IdentitySource,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
)
from sidecar.decision.cache import DecisionCache
from sidecar.decision.decide import apply_placement, explain
from sidecar.decision.decision_log import DecisionLog
from sidecar.decision.generation import ReuseGenerations
from sidecar.decision.outcome import OutcomeLog
from sidecar.decision.recorder import Recorder
from sidecar.identity.carrier_monitor import CarrierMonitor
from sidecar.model import Applied, Decision, Explanation, FinishReport, IdentityReader, Request
from sidecar.placement.engine_phase import EnginePhaseKey
from sidecar.placement.placement import Placement, Proposal, Ticket
from sidecar.policy.compiled import CompiledPolicy
from sidecar.telemetry import metrics

Item = tuple[int, int]
"""Stream and `seq` of an item, which its finish report may name."""


class Decided(NamedTuple):
    """A decision that was taken."""

    decision: Decision
    decision_id: str
    serialized: bytes
    """The decision as it is sent, without its id; empty where placement completed it."""
    unchanged: bool
    """Whether it equals what the client applied."""


class DecisionService:
    """Decides by the policy in force, and owns all state that decisions leave behind.

    Args:
        get_policy: gives the policy in force.
        store: counts what happens.
        serialize: turns a decision into what is sent, in which form it is remembered.
        clock: gives seconds that never go back.
        wall_clock: gives the seconds since the epoch.
        on_pause: called with an engine phase that is not placed on for a while; `resume` ends that.
        on_generation: called with the worker whose reuse generation changed; None for all of them.
        on_ended: called with a conversation that was ended.

    Attributes:
        placement: the conversations and requests that the sidecar places.
        recorder: the last decisions.
    """

    def __init__(
        self,
        get_policy: Callable[[], CompiledPolicy],
        store: MetricStore,
        serialize: Callable[[Decision], bytes],
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        on_pause: Callable[[EnginePhaseKey], None],
        on_generation: Callable[[str | None], None],
        on_ended: Callable[[ConversationHash], None],
    ) -> None:
        self._get_policy = get_policy
        self._store = store
        self._cache = DecisionCache(serialize)
        self._carriers = CarrierMonitor(store, clock)
        self._outcomes = OutcomeLog(store)
        self._log = DecisionLog()
        self._on_pause = on_pause
        self._on_ended = on_ended
        self._policy: CompiledPolicy | None = None
        self._suspended: Set[str] = frozenset()
        # Decisions from this number on were taken under what is in force now.
        self._first_current = 0
        self._generations = ReuseGenerations(on_generation)
        self.placement = Placement(clock, store, lambda: get_policy().placement, self._pause)
        self.recorder = Recorder(wall_clock)

    def generation_of(self, worker_id: str) -> int:
        """Returns the reuse generation in force for a worker."""
        return self._generations.of(worker_id)

    def decide(
        self,
        request: Request,
        identity: IdentityReader,
        item: Item | None = None,
        applied: Applied | None = None,
    ) -> Decided:
        """Decides about one request: places, records and counts it.

        Args:
            request: without its identity.
            identity: its carriers.
            item: names it in its finish report; None if no report will follow.
            applied: what its client did with it already; it is booked on that rank and never placed anew.
        """
        policy, suspended = self._follow_policy()
        decision, serialized = self._cache.decide(request, identity, policy, suspended)
        proposal = None
        if decision.directive is RankDirective.PLACE:
            proposal, decision = self._propose(request, decision, applied)
        unchanged = applied is not None and self._is_unchanged(decision, applied)
        decision_id = self.recorder.record(request, decision, item, applied, unchanged=unchanged)
        if proposal is not None:
            self.placement.commit(proposal, Ticket(decision_id, item) if item is not None else None)
        self._count(request, decision, policy)
        if applied is not None:
            self._store.add(metrics.REUSED_REQUESTS, "true" if unchanged else "false")
        if decision.source is not IdentitySource.NONE and request.kind.is_normal:
            self._carriers.record(request, decision, suspends=policy.suspends_single_use)
            self._follow_policy()
            self._note_final(decision, has_finish=item is not None)
        if policy.logged_buckets:
            self._log.write(request, decision, decision_id, policy)
        return Decided(decision, decision_id, serialized, unchanged)

    def explain(self, request: Request, identity: IdentityReader) -> Explanation:
        """Returns what `decide` would decide now, and changes nothing."""
        policy = self._get_policy()
        suspended = self._carriers.list_suspended(suspends=policy.suspends_single_use)
        explanation = explain(request._replace(identity=identity.read()), policy, suspended)
        if explanation.decision.directive is not RankDirective.PLACE:
            return explanation
        _, decision = self._propose(request, explanation.decision, None)
        return Explanation(decision, explanation.carriers, explanation.rules)

    def finish(self, report: FinishReport, stream: int, worker_id: str) -> None:
        """Takes the report that a request ended: frees its load, and learns from what was observed.

        Args:
            report: as the worker sent it.
            stream: number of the stream that it came by.
            worker_id: the worker that the stream names.
        """
        self.placement.finish(report, stream, worker_id)
        record = self.recorder.finish(report, stream)
        self._outcomes.take(report, record)
        # Last, since it forgets what the lines above still write to.
        if record is not None and record.decision.session_final:
            self._end(record.decision.conversation_hash)

    def end_conversation(self, conversation: ConversationHash) -> int:
        """Forgets a conversation, here and at the clients; returns how many entries there were."""
        ended = self.placement.end(conversation)
        self._on_ended(conversation)
        return ended

    def resume(self, worker_id: str) -> None:
        """Ends reuse of what was decided for a worker while its engine was not placed on."""
        self._raise_generation(worker_id)

    def record_dropped(self, carrier: str, count: int) -> None:
        """Counts requests that a client applied remembered decisions to and could not send."""
        self._carriers.record_dropped(carrier, count)

    def _follow_policy(self) -> tuple[CompiledPolicy, Set[str]]:
        """Returns the policy in force and the suspended carriers; a change of either ends reuse."""
        policy = self._get_policy()
        suspended = self._carriers.list_suspended(suspends=policy.suspends_single_use)
        if policy is not self._policy:
            self._policy, self._first_current = policy, self.recorder.count
        if suspended != self._suspended:
            self._suspended = suspended
            self._raise_generation(None)
        return policy, suspended

    def _raise_generation(self, worker_id: str | None) -> None:
        self._first_current = self.recorder.count
        if worker_id is None:
            self._generations.raise_all()
        else:
            self._generations.raise_for(worker_id)

    def _pause(self, key: EnginePhaseKey) -> None:
        self._raise_generation(key.worker_id)
        self._on_pause(key)

    def _is_unchanged(self, decision: Decision, applied: Applied) -> bool:
        """Returns whether a decision equals the applied one, current id and key included."""
        is_current = self.recorder.is_since(applied.decision_id, self._first_current)
        return is_current and (applied.directive, applied.dp_rank) == (decision.directive, decision.dp_rank)

    def _propose(
        self, request: Request, decision: Decision, applied: Applied | None
    ) -> tuple[Proposal | None, Decision]:
        key = decision.placement_key
        applied_rank = applied.dp_rank if applied is not None else None
        if applied_rank is not None and request.known_rank is None:
            # A table that does not have the conversation learns where it is.
            request = request._replace(known_rank=applied_rank)
        proposal = None if key is None else self.placement.propose(request, key, applied_rank)
        if proposal is None:
            return None, apply_placement(request, decision, None, PlacementState.NONE)
        decision = apply_placement(request, decision, proposal.rank, proposal.placement)
        # A request that went out without a rank of ours is nowhere to be booked.
        is_booked = applied is None or applied_rank is not None
        return proposal if is_booked else None, decision

    def _note_final(self, decision: Decision, *, has_finish: bool) -> None:
        if decision.session_final:
            self._store.add(metrics.FINAL_REQUESTS)
            if not has_finish:
                self._end(decision.conversation_hash)

    def _end(self, conversation: ConversationHash) -> None:
        ended = self.end_conversation(conversation)
        self._store.add(metrics.ENDED_CONVERSATIONS, "true" if ended else "false")

    def _count(self, request: Request, decision: Decision, policy: CompiledPolicy) -> None:
        labels = _label(request.phase, decision.source, decision.placement, decision.directive, policy.mode)
        self._store.add(metrics.DECISIONS, *labels)
        for notice in decision.notices:
            self._store.add(metrics.NOTICES, notice)
        if request.router_rank is not None and request.engine.rank_source is RankSource.SIDECAR:
            self._count_disagreement(request, decision)

    def _count_disagreement(self, request: Request, decision: Decision) -> None:
        rank, kept = decision.dp_rank, "sidecar"
        if rank is None:
            rank, kept = self.placement.find_rank(request, decision.conversation_hash), "router"
        if rank is not None and rank != request.router_rank:
            self._store.add(metrics.ROUTER_RANK_DISAGREEMENT, kept)


@lru_cache(maxsize=1_024)
def _label(
    phase: Phase,
    source: IdentitySource,
    placement: PlacementState,
    directive: RankDirective,
    mode: str,
) -> LabelValues:
    return (*(member.name.lower() for member in (phase, source, placement, directive)), mode)
