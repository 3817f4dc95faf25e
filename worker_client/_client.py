"""The client: submits each request to the sidecar, and decides itself while that is unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from routing_hints import tokens
from routing_hints.errors import ConfigurationError, ConfigurationProblem
from routing_hints.limits import MAX_ENGINES
from routing_hints.metrics import MetricStore
from routing_hints.vocabulary import Phase, RankDirective, RequestKind
from worker_client import _metrics
from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile, EngineSource
from worker_client._engine_params import is_rank_valid
from worker_client._gate import GatedEngine, apply_gate
from worker_client._local_rule import resolve_locally
from worker_client._lru_map import LruMap
from worker_client._memory import Confirmation, Memory
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._once_logger import OnceLogger
from worker_client._pending_request import PendingRequest
from worker_client._plan import PendingPlan, Plan, PlanRecord
from worker_client._plan_reporter import PlanReporter
from worker_client._request import RequestFacts, read_request
from worker_client._transport import Transport

_FORWARD = Decision(RankDirective.FORWARD, Origin.FORWARDED)


class RoutingHintClient:
    """One worker's client. Use it as an async context manager, in the loop that serves requests.

    It fails open: whatever happens to the sidecar, a plan is made within the deadlines of `ClientConfig`, and
    in the worst case forwards what the router chose.

    Attributes:
        metrics: what is counted, for exporters.
    """

    def __init__(self, config: ClientConfig, *, engine: EngineSource | None = None) -> None:
        """Prepares a client; nothing is connected before it is entered or makes its first plan.

        Args:
            config: the settings.
            engine: the worker's engine, if it exists already, so that settings which can never act on it
                are refused here rather than logged later.

        Raises:
            ConfigurationError: a setting can never act on `engine`.
        """
        self._config = config
        self._policy = ClientPolicy()
        self.metrics = MetricStore(_metrics.TABLE)
        self._once_logger = OnceLogger()
        self._memory = Memory(config.memory_entries)
        self._gated: LruMap[str, GatedEngine] = LruMap(MAX_ENGINES)
        self._transport = self._make_transport()
        self._reporter = PlanReporter(
            self.metrics,
            self._once_logger,
            self._transport,
            lambda: self._policy,
            self._memory,
            max_conversations=config.memory_entries,
        )
        self._is_closed = False
        profile = engine.current() if engine is not None else None
        if profile is not None:
            gated = apply_gate(config, profile)
            if gated.is_problem_fatal:
                raise ConfigurationError([ConfigurationProblem("rank_source", gated.problem)])

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, engine: EngineSource | None = None
    ) -> RoutingHintClient:
        """Returns a client with the settings of the environment; see `ClientConfig.from_env`.

        Raises:
            ConfigurationError: a setting is malformed, or can never act on `engine`.
        """
        return cls(ClientConfig.from_env(environ), engine=engine)

    def _make_transport(self) -> Transport:
        return Transport(
            self._config,
            self.metrics,
            self._once_logger,
            get_policy=lambda: self._policy,
            on_policy=self._take_policy,
            on_decision=self._take_result,
            on_ended=self._memory.forget,
        )

    async def __aenter__(self) -> RoutingHintClient:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Starts connecting in the background, in the running loop. Idempotent."""
        if self._config.affinity is not Affinity.OFF:
            self._transport.start()

    async def close(self) -> None:
        """Sends the finish reports that are still unsent and disconnects. Later plans are forwarded."""
        self._is_closed = True
        await self._transport.close()

    def stats(self) -> dict[str, dict[str, int]]:
        """Returns the counters of docs/reference.md: name, to label values joined by slashes, to count."""
        return _metrics.read_stats(self.metrics)

    def plan(
        self,
        request: object,
        context: object = None,
        *,
        phase: Phase,
        engine: EngineSource,
        headers: object = None,
        body: object = None,
        tenant: str | None = None,
        kind: RequestKind | None = None,
    ) -> PendingPlan:
        """Returns the plan of one request in one phase, to be entered by `async with` or awaited.

        Entering and awaiting never raise (but for the cancellation of the caller) and never wait longer than
        `ClientConfig.unknown_timeout_s`. Leaving the block ends the request without waiting. A plan that was
        awaited is ended by `plan.finish()`.

        Args:
            request: Dynamo's request dict, or any mapping of that shape; read, never changed.
            context: Dynamo's context, or None.
            phase: the phase.
            engine: the engine that will run the request.
            headers: HTTP headers, a mapping or a sequence of pairs, where the worker has them.
            body: the HTTP body as a mapping, where the worker has it.
            tenant: whose request it is; by default its cache salt, or header `x-tenant-id`.
            kind: what the request is for; by default read from the request.
        """

        def read() -> RequestFacts:
            return read_request(
                request, context, phase=phase, headers=headers, body=body, tenant=tenant, kind=kind
            )

        return PendingPlan(partial(self._decide, read, engine))

    async def _decide(self, read: Callable[[], RequestFacts], source: EngineSource) -> Plan:
        """Returns the plan of one request. Raises nothing but the caller's cancellation."""
        facts = RequestFacts()
        gated: GatedEngine | None = None
        pending: PendingRequest | None = None
        try:
            facts = read()
            engine = source.current()
            if engine is None:
                return self._forward(facts, gated, tokens.ENGINE_NOT_READY)
            gated = self._gate(engine)
            self._drop_bad_rank(facts, gated.profile)
            if skipped := gated.closed or self._find_skip_reason(facts):
                return self._forward(facts, gated, skipped)
            pending = self._make_pending(facts, gated.profile)
            decision, reason = self._reuse(pending), ""
            if decision is None:
                decision, reason = await self._call_sidecar(pending)
        except (asyncio.CancelledError, GeneratorExit):
            if pending is not None:
                self._reporter.report_cancelled(pending)
            raise
        except Exception as error:  # noqa: BLE001  no error of ours may become the request's
            self._reporter.on_internal_error(error)
            return self._forward(facts, gated, tokens.CLIENT_INTERNAL_ERROR, pending)
        self.metrics.add(_metrics.PLANS, decision.origin.value)
        return Plan(PlanRecord(facts, decision, gated, pending, reason), self._reporter)

    def _forward(
        self,
        facts: RequestFacts,
        gated: GatedEngine | None,
        reason: str,
        pending: PendingRequest | None = None,
    ) -> Plan:
        self.metrics.add(_metrics.PLANS, Origin.FORWARDED.value)
        self.metrics.add(_metrics.SKIPPED_REQUESTS, reason)
        return Plan(PlanRecord(facts, _FORWARD, gated, pending, reason), self._reporter)

    def _gate(self, engine: EngineProfile) -> GatedEngine:
        gated = self._gated.get(engine.instance_id)
        if gated is None:
            gated = apply_gate(self._config, engine)
            self._gated.put(engine.instance_id, gated)
            if gated.problem:
                self._once_logger.log_configuration_problem(gated.problem, is_fatal=gated.is_problem_fatal)
            if len(self._gated) == MAX_ENGINES:
                self._once_logger.log_many_engines(MAX_ENGINES)
        return gated

    def _find_skip_reason(self, facts: RequestFacts) -> str:
        if facts.kind is RequestKind.HEALTH_CHECK:
            return tokens.KIND_HEALTH_CHECK
        if facts.kind is RequestKind.WARMUP:
            return tokens.KIND_WARMUP
        if facts.phase is Phase.UNSPECIFIED:
            return tokens.PHASE_UNKNOWN
        return tokens.CLIENT_CLOSED if self._is_closed else ""

    def _drop_bad_rank(self, facts: RequestFacts, engine: EngineProfile) -> None:
        if facts.router_rank is not None and not is_rank_valid(facts.router_rank, engine):
            facts.router_rank = None
            facts.notices.append(tokens.ROUTER_RANK_OUT_OF_RANGE)
        if tokens.ROUTER_RANK_OUT_OF_RANGE in facts.notices:
            self.metrics.add(_metrics.ROUTER_RANK_DROPPED)
            self._once_logger.log_bad_rank(tokens.ROUTER_RANK_OUT_OF_RANGE)

    def _make_pending(self, facts: RequestFacts, engine: EngineProfile) -> PendingRequest:
        loop = asyncio.get_running_loop()
        pending = PendingRequest(facts, engine, self._policy, loop.time())
        known_rank = self._memory.bound_rank(pending.key)
        if is_rank_valid(known_rank, engine):
            pending.known_rank = known_rank
        return pending

    def _reuse(self, pending: PendingRequest) -> Decision | None:
        """Returns the decision to apply at once, None if the request has to wait; it is sent in any case."""
        if not self._is_policy_valid():
            return None
        stream_number = self._transport.stream_number
        now_s = pending.submitted_at_s
        pending.applied = self._memory.find_reusable(pending.key, self._policy, stream_number, now_s)
        if pending.applied is not None:
            self._transport.submit_applied(pending)
        return pending.applied

    def _is_policy_valid(self) -> bool:
        until_s = self._policy.valid_until_s
        return until_s is None or time.time() < until_s

    async def _call_sidecar(self, pending: PendingRequest) -> tuple[Decision, str]:
        """Returns the sidecar's decision, or the client's own with the reason for it."""
        self._transport.start()
        pending.reply = asyncio.get_running_loop().create_future()
        is_known = self._memory.holds(pending.key, self._policy)
        reason = self._transport.submit(pending)
        if not reason:
            limit_s = self._config.known_timeout_s if is_known else self._config.unknown_timeout_s
            decision = await pending.wait(limit_s)
            if decision is not None:
                return decision, ""
            reason = tokens.SIDECAR_TIMED_OUT if pending.is_timed_out else tokens.NO_RESPONSE
        self.metrics.add(_metrics.FAIL_OPEN, reason)
        remembered = self._memory.recall(pending.key, self._policy)
        if remembered is not None:
            return remembered, reason
        if self._config.local_rule and self._is_policy_valid():
            return resolve_locally(pending.facts, pending.engine, self._policy), reason
        return _FORWARD, reason

    def _take_policy(self, policy: ClientPolicy) -> None:
        self._policy = policy

    def _take_result(self, pending: PendingRequest, decision: Decision | None, generation: int) -> None:
        confirmation = Confirmation(
            pending.stream_number, pending.seq, generation, asyncio.get_running_loop().time()
        )
        if decision is None:
            self._memory.confirm(pending.key, confirmation)
            return
        if pending.applied is not None:
            for what in _list_differences(pending.applied, decision):
                self.metrics.add(_metrics.REUSE_CORRECTED, what)
        # The policy may have changed while the request was out.
        sent_by = pending.policy
        policy = sent_by if decision.policy_revision == sent_by.revision else self._policy
        if decision.policy_revision == policy.revision and pending.is_keyed_by(policy):
            self._memory.remember(pending.key, decision, pending.engine, confirmation)


def _list_differences(applied: Decision, decision: Decision) -> Iterator[str]:
    """Gives what a decision has otherwise than the one that was applied."""
    for what, before, now in (
        ("id", applied.conversation_id, decision.conversation_id),
        ("affinity_key", applied.affinity_key, decision.affinity_key),
        ("directive", applied.directive, decision.directive),
        ("rank", applied.dp_rank, decision.dp_rank),
    ):
        if before != now:
            yield what
