"""How a worker uses the client; checked by mypy, never run."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from worker_client import (
    Answer,
    ConfigurationError,
    EngineProfile,
    EngineSource,
    FinishOutcome,
    Phase,
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
    profile: EngineSource = EngineProfile.lazy(lambda: llm)
    eager: EngineSource = EngineProfile.detect(llm)
    try:
        client = RoutingHintClient.from_env(engine=eager)
    except ConfigurationError as error:
        faults: tuple[str, ...] = error.faults
        raise SystemExit(faults) from error
    async with (
        client,
        client.plan(request, context, phase=Phase.PREFILL, engine=profile) as plan,
    ):
        kwargs: dict[str, Any] = plan.engine_kwargs(disaggregated_params=params)
        async for output in llm.generate_async(request["token_ids"], **kwargs):
            plan.observe(output)
        conversation_id: str | None = plan.conversation_id
        answer: Answer = plan.answer
        directive: RankDirective = answer.directive
        del conversation_id, directive
    stats: dict[str, dict[str, int]] = client.stats()
    del stats


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
