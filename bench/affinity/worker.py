"""A worker: the real client in front of a modeled engine."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any

from bench.affinity.arm import Arm, Failure
from bench.affinity.context import KV_AWARE
from bench.affinity.workload import Turn
from examples.fake_engine.params import ConversationParams, DisaggregatedParams, SchedulingParams
from worker_client import (
    AdpRouter,
    Affinity,
    ClientConfig,
    EngineDialect,
    EngineProfile,
    EngineTypes,
    Phase,
    Plan,
    RankSource,
    RoutingHintClient,
)

PATIENT_S = 60.0
MODEL = "model"
_TYPES = EngineTypes(SchedulingParams, ConversationParams, DisaggregatedParams)
_NO_ID_ON = {Phase.PREFILL: Failure.NO_ID_ON_CONTEXT, Phase.DECODE: Failure.NO_ID_ON_GENERATION}


class Context:
    """What Dynamo hands a worker beside the request."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def id(self) -> str:
        """Returns the request's id, the same in both phases."""
        return self._request_id


class Worker:
    """One worker process' part in a run.

    Args:
        name: the worker's id.
        phase: its phase.
        ranks: of its engine.
        router: its engine's real router.
        arm: what is compared.
        target: its sidecar.
        run: number of the run, which names this start of the engine: what the sidecar still holds of an
            earlier run, such as requests that never ended, belongs to an engine that is gone.

    Attributes:
        notices: how often the plans held each notice.
    """

    def __init__(
        self, name: str, phase: Phase, ranks: int, router: str, arm: Arm, target: str, run: int
    ) -> None:
        self.notices: Counter[str] = Counter()
        self._name = name
        self._phase = phase
        self._ranks = ranks
        self._arm = arm
        self._engine = _make_profile(f"{name}-{run}", phase, ranks, router, arm)
        self._finished: list[Plan] = []
        self.client = RoutingHintClient(
            ClientConfig(
                target=target,
                affinity=arm.affinity,
                rank_source=arm.rank_source,
                known_timeout_s=PATIENT_S,
                unknown_timeout_s=PATIENT_S,
                worker_id=name,
            )
        )

    async def plan(self, turn: Turn, prefill: tuple[str, int, int] | None = None) -> tuple[Plan, Any, Any]:
        """Plans a request; finish reports since the last request go out with it, in order.

        Args:
            turn: the request.
            prefill: on decode, the context worker, its rank and its cached tokens.

        Returns:
            The plan, the conversation id that the engine receives, and its `SchedulingParams`.

        Raises:
            RuntimeError: the sidecar was called and its decision was not used.
        """
        self._send_finishes()
        request = self._make_request(turn, prefill)
        plan = await self.client.plan(
            request, Context(turn.request_id), phase=self._phase, engine=self._engine
        )
        if plan.reason and self._arm.affinity is not Affinity.OFF:
            raise RuntimeError(f"the sidecar did not decide: {plan.reason}")
        self.notices.update(plan.notices)
        kwargs = plan.engine_kwargs(disaggregated_params=DisaggregatedParams())
        params = kwargs.get("conversation_params")
        conversation_id = None if params is None else params.conversation_id
        scheduling_params = kwargs["scheduling_params"]
        if self._arm.failure is Failure.RANK_WITHHELD_WITHOUT_ID:
            conversation_id = None
        if self._arm.failure is Failure.NO_IDENTITY_RANK_WITHHELD:
            scheduling_params = None
        return plan, conversation_id, scheduling_params

    def finish(self, plan: Plan, rank: int, cached_tokens: int) -> None:
        """Takes the result of a request; its finish report is sent just before the next request."""
        if self._phase is Phase.PREFILL:
            plan.observe(
                {
                    "disaggregated_params": {"ctx_dp_rank": rank},
                    "completion_usage": {"prompt_tokens_details": {"cached_tokens": cached_tokens}},
                }
            )
        self._finished.append(plan)

    async def close(self) -> None:
        """Sends what is left and disconnects."""
        self._send_finishes()
        await self.client.close()

    def _send_finishes(self) -> None:
        for plan in self._finished:
            plan.finish()
        self._finished.clear()

    def _make_request(self, turn: Turn, prefill: tuple[str, int, int] | None) -> dict[str, Any]:
        failure, conversation = self._arm.failure, turn.conversation
        routing: dict[str, Any] = {}
        request: dict[str, Any] = {"token_ids": turn.prompt, "model": MODEL, "routing": routing}
        nameless = (_NO_ID_ON[self._phase], Failure.NO_IDENTITY_RANK_WITHHELD)
        if conversation.is_named and failure not in nameless:
            request["agent_context"] = {"session_id": conversation.name}
            if conversation.parent:
                request["agent_context"]["parent_session_id"] = conversation.parent
        if failure is Failure.RANK_FORCED:
            routing["dp_rank"] = self._choose_rank(turn.request_id)
        elif failure is Failure.NO_IDENTITY_RANK_WITHHELD:
            routing["dp_rank"] = self._choose_rank(conversation.name)
        if prefill is not None:
            worker, rank, cached_tokens = prefill
            routing["prefill_worker_id"] = worker
            request["prefill_result"] = {
                "disaggregated_params": {"ctx_dp_rank": rank},
                "prompt_tokens_details": {"cached_tokens": cached_tokens},
            }
        return request

    def _choose_rank(self, key: str) -> int:
        """Returns the choice of an upstream router that has only the number of this engine's ranks."""
        return blake2b(key.encode(), digest_size=8).digest()[0] % self._ranks


def _make_profile(instance_id: str, phase: Phase, ranks: int, router: str, arm: Arm) -> EngineProfile:
    is_context = phase is Phase.PREFILL
    if router == KV_AWARE:
        adp_router = AdpRouter.KV_CACHE_AWARE
    elif router != "default" or (is_context and arm.failure is Failure.ENGINE_IGNORES_ID):
        adp_router = AdpRouter.CONVERSATION
    else:
        adp_router = AdpRouter.DEFAULT
    is_stable = arm.rank_source is RankSource.SIDECAR
    return EngineProfile(
        dialect=EngineDialect.RANK_ONLY if is_stable else EngineDialect.CONVERSATION_PARAMS,
        adp_router=adp_router,
        dp_size=ranks,
        instance_id=instance_id,
        types=_TYPES,
    )
