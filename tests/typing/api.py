"""How a worker uses the client; checked by mypy, never run."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from routing_hints.metrics import MetricStore
from worker_client import (
    ConfigurationError,
    ConfigurationProblem,
    Decision,
    EngineProfile,
    EngineSource,
    FinishOutcome,
    Phase,
    PlacementState,
    RankDirective,
    RoutingHintClient,
)
from worker_client.testing import FakeClient, InProcessSidecar


class Engine(Protocol):
    """An engine as the worker knows it."""

    def generate_async(self, inputs: object, **kwargs: object) -> AsyncIterator[object]:
        """Starts a request."""


async def serve(llm: Engine, request: dict[str, Any], context: object, params: object) -> None:
    """Runs a request the way the README shows it."""
    profile: EngineSource = EngineProfile.lazy(lambda: llm, get_instance_id=lambda: "engine-1")
    eager: EngineSource = EngineProfile.detect(llm, records_first_rank=True, instance_id="engine-1")
    try:
        client = RoutingHintClient.from_env(engine=eager)
    except ConfigurationError as error:
        problems: tuple[ConfigurationProblem, ...] = error.problems
        key, reason = problems[0]
        raise SystemExit(key + reason) from error
    async with (
        client,
        client.plan(request, context, phase=Phase.PREFILL, engine=profile) as plan,
    ):
        kwargs: dict[str, Any] = plan.engine_kwargs(disaggregated_params=params)
        async for output in llm.generate_async(request["token_ids"], **kwargs):
            plan.observe(output)
        conversation_id: str | None = plan.conversation_id
        decision: Decision = plan.decision
        directive: RankDirective = decision.directive
        placement: PlacementState = decision.placement
        applied: RankDirective = plan.applied_directive
        rank: int | None = plan.observed_rank
        texts: tuple[str, ...] = (plan.reason, plan.conversation_hash, *plan.notices)
        is_decided: bool = plan.is_decided
        phase: Phase = plan.phase
        del conversation_id, directive, placement, applied, rank, texts, is_decided, phase
    stats: dict[str, dict[str, int]] = client.stats()
    store: MetricStore = client.metrics
    del stats, store


async def serve_without_a_block(client: RoutingHintClient, request: dict[str, Any]) -> None:
    """Ends the plan by hand."""
    plan = await client.plan(
        request, phase=Phase.AGGREGATED, engine=EngineProfile(), headers={"x-session-id": "a"}, tenant="t"
    )
    plan.finish(FinishOutcome.FAILED)


async def use_fakes() -> None:
    """Tests a worker."""
    fake: RoutingHintClient = FakeClient()
    await fake.close()
    async with InProcessSidecar() as sidecar:
        target: str = sidecar.target
        del target
