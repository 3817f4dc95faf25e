"""The client: asks the sidecar about each request, and decides itself when that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from worker_client._call import Question
from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile, EngineSource
from worker_client._engine_params import is_rank_valid
from worker_client._errors import ConfigurationError
from worker_client._gate import GatedEngine, apply_gate
from worker_client._local_rule import resolve_locally
from worker_client._lru_map import LruMap
from worker_client._memory import Memory
from worker_client._model import Answer, Origin, Phase, RankDirective, RequestKind
from worker_client._once_logger import Announcer
from worker_client._pending_plan import PendingPlan
from worker_client._plan import Plan
from worker_client._plan_reporter import Journal
from worker_client._request import RequestFacts, read_request
from worker_client._send_queue import MAX_ENGINES
from worker_client._stats import Stats
from worker_client._transport import Transport

CLIENT_DEFECT = "client-defect"
"""Reason of a plan that a defect of this library made."""
_FORWARD = Answer(RankDirective.FORWARD, Origin.FORWARDED)


class RoutingHintClient:
    """One worker's client. Use it as an async context manager, in the loop that serves requests.

    It fails open: whatever happens to the sidecar, a plan is there within the deadlines of `ClientConfig`,
    and at worst forwards what the router chose.
    """

    def __init__(self, config: ClientConfig, *, engine: EngineSource | None = None) -> None:
        """Prepares a client; nothing is connected before it is entered or first asked.

        Args:
            config: the settings.
            engine: the worker's engine, if it exists already, so that settings which can never act on it
                are refused here rather than logged later.

        Raises:
            ConfigurationError: a setting can never act on `engine`.
        """
        self._config = config
        self._stats = Stats()
        self._announcer = Announcer()
        self._memory = Memory(config.memory_entries)
        self._gated: LruMap[str, GatedEngine] = LruMap(MAX_ENGINES)
        self._transport = self._make_transport()
        self._journal = Journal(
            stats=self._stats,
            announcer=self._announcer,
            transport=self._transport,
            max_conversations=config.memory_entries,
        )
        self._is_closed = False
        profile = engine.current() if engine is not None else None
        if profile is not None:
            gated = apply_gate(config, profile)
            if gated.is_fault_fatal:
                raise ConfigurationError([gated.fault])

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
        return Transport(self._config, stats=self._stats, announcer=self._announcer, on_answer=self._remember)

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
        """Sends the ends of requests that are still unsent and disconnects. Later plans are forwarded."""
        self._is_closed = True
        await self._transport.close()

    def stats(self) -> dict[str, dict[str, int]]:
        """Returns the counters of docs/reference.md: name to label to count."""
        return self._stats.snapshot()

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
        """Returns the plan of one request on one leg, to be entered by `async with` or awaited.

        Entering and awaiting never raise (but for the cancellation of the caller) and never wait longer than
        `ClientConfig.unknown_timeout_s`. Leaving the block ends the request without waiting. A plan that was
        awaited is ended by `plan.finish()`.

        Args:
            request: Dynamo's request dict, or any mapping of that shape; read, never changed.
            context: Dynamo's context, or None.
            phase: the leg.
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
        question: Question | None = None
        try:
            facts = read()
            engine = source.current()
            if engine is None:
                return self._forward(facts, gated, "engine-not-ready")
            gated = self._gate(engine)
            self._check_router_rank(facts, gated.profile)
            if closed := gated.closed or self._closed_reason(facts):
                return self._forward(facts, gated, closed)
            question = self._make_question(facts, gated.profile)
            answer, reason = await self._ask(question)
        except (asyncio.CancelledError, GeneratorExit):
            if question is not None:
                self._journal.report_cancelled(question)
            raise
        except Exception as error:  # noqa: BLE001  no defect of ours may become the request's
            self._journal.on_defect(error)
            return self._forward(facts, gated, CLIENT_DEFECT, question)
        self._stats.count("plans", answer.origin.value)
        return self._make_plan(facts, answer, gated, question, reason)

    def _forward(
        self, facts: RequestFacts, gated: GatedEngine | None, reason: str, question: Question | None = None
    ) -> Plan:
        self._stats.count("plans", Origin.FORWARDED.value)
        self._stats.count("not_asked", reason)
        return self._make_plan(facts, _FORWARD, gated, question, reason)

    def _make_plan(
        self,
        facts: RequestFacts,
        answer: Answer,
        gated: GatedEngine | None,
        question: Question | None,
        reason: str,
    ) -> Plan:
        return Plan(
            facts=facts,
            answer=answer,
            gated=gated,
            question=question,
            reason=reason,
            listener=self._journal,
        )

    def _gate(self, engine: EngineProfile) -> GatedEngine:
        gated = self._gated.get(engine.instance_id)
        if gated is None:
            gated = apply_gate(self._config, engine)
            self._gated.put(engine.instance_id, gated)
            if gated.fault:
                self._announcer.announce_fault(gated.fault, is_fatal=gated.is_fault_fatal)
            if len(self._gated) == MAX_ENGINES:
                self._announcer.announce_many_engines(MAX_ENGINES)
        return gated

    def _closed_reason(self, facts: RequestFacts) -> str:
        if facts.kind is not RequestKind.NORMAL:
            return f"kind-{facts.kind.name.lower().replace('_', '-')}"
        if facts.phase is Phase.UNSPECIFIED:
            return "phase-unknown"
        return "client-closed" if self._is_closed else ""

    def _check_router_rank(self, facts: RequestFacts, engine: EngineProfile) -> None:
        if facts.router_rank is not None and not is_rank_valid(facts.router_rank, engine):
            facts.router_rank = None
            facts.notices.append("router-rank-out-of-range")
        if "router-rank-out-of-range" in facts.notices:
            self._stats.count("router_rank_dropped")
            self._announcer.announce_bad_rank("router-rank-out-of-range")

    def _make_question(self, facts: RequestFacts, engine: EngineProfile) -> Question:
        loop = asyncio.get_running_loop()
        question = Question(facts, engine, self._transport.policy, loop.create_future(), loop.time())
        known_rank = self._memory.bound_rank(question.key)
        if is_rank_valid(known_rank, engine):
            question.known_rank = known_rank
        return question

    async def _ask(self, question: Question) -> tuple[Answer, str]:
        """Returns the sidecar's answer, or the client's own with the reason for it."""
        self._transport.start()
        is_known = self._memory.holds(question.key, self._transport.policy)
        reason = self._transport.ask(question)
        if not reason:
            limit_s = self._config.known_timeout_s if is_known else self._config.unknown_timeout_s
            answer = await question.wait(limit_s)
            if answer is not None:
                return answer, ""
            reason = "sidecar-late" if question.is_late else "sidecar-gave-no-answer"
        self._stats.count("fail_open", reason)
        remembered = self._memory.recall(question.key, self._transport.policy)
        if remembered is not None:
            return remembered, reason
        if self._config.local_rule:
            return resolve_locally(question.facts, question.engine, self._transport.policy), reason
        return _FORWARD, reason

    def _remember(self, question: Question, answer: Answer) -> None:
        # The policy may have changed while the question was out.
        sent_by, current = question.policy, self._transport.policy
        policy = sent_by if answer.policy_revision == sent_by.revision else current
        if answer.policy_revision == policy.revision and question.is_asked_by(policy):
            self._memory.remember(question.key, answer, question.engine)
