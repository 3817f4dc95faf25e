"""The public testing module, used as a worker's own tests use it; and the public names."""

from __future__ import annotations

import worker_client
from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import ENGINE, PLACE, build_decision, build_request
from worker_client import ClientConfig, Origin, Phase, RoutingHintClient, testing
from worker_client.testing import FakeClient, InProcessSidecar


async def test_a_fake_client_decides_by_structured_carriers_by_default() -> None:
    client = FakeClient()
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE) as plan:
        assert (plan.decision.origin, plan.conversation_id) == (Origin.SIDECAR, "conversation-0001")
    assert [pending.facts.model for pending in client.requests] == ["m"]
    assert len(client.finishes) == 1


async def test_a_fake_client_decides_as_its_function_does() -> None:
    client = FakeClient(lambda facts, engine: build_decision(PLACE, dp_rank=engine.dp_size - 1))
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
    assert plan.decision.dp_rank == 3


async def test_a_fake_client_is_entered_and_left_without_a_sidecar() -> None:
    """A worker's own start and stop run in its tests, too."""
    async with FakeClient() as client:
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
    after = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
    assert (plan.reason, after.reason) == ("", "client-closed")


async def test_an_in_process_sidecar_responds_over_a_real_socket_and_records() -> None:
    async with InProcessSidecar() as sidecar:
        async with (
            RoutingHintClient(ClientConfig(sidecar.target, unknown_timeout_s=30.0)) as client,
            client.plan(build_request(rank=2), phase=Phase.PREFILL, engine=ENGINE) as plan,
        ):
            assert (plan.reason, plan.conversation_id) == ("", "conversation-0001")
            plan.engine_kwargs()
        assert [request.hints.dp_rank for request in sidecar.requests] == [2]
        assert [finish.id_attached for finish in sidecar.finishes] == [True]


async def test_an_in_process_sidecar_responds_as_its_function_does() -> None:
    def forward(request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
        return service_pb2.EnrichResponse(
            rank_directive=types_pb2.RANK_DIRECTIVE_FORWARD, notices=[request.engine_instance]
        )

    async with (
        InProcessSidecar(forward) as sidecar,
        RoutingHintClient(ClientConfig(sidecar.target, unknown_timeout_s=30.0)) as client,
    ):
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
        assert plan.notices == ("engine-1",)


def test_the_public_names_are_pinned() -> None:
    """Adding one is a decision, removing one a breaking change."""
    assert worker_client.__all__ == [
        "AdpRouter",
        "Affinity",
        "ClientConfig",
        "ConfigurationError",
        "ConfigurationProblem",
        "Decision",
        "EngineDialect",
        "EngineProfile",
        "EngineSource",
        "EngineTypes",
        "FinishOutcome",
        "IdentitySource",
        "Origin",
        "PendingPlan",
        "Phase",
        "PlacementState",
        "Plan",
        "RankDirective",
        "RankSource",
        "RequestKind",
        "RoutingHintClient",
        "RoutingHintsError",
    ]
    assert all(hasattr(worker_client, name) for name in worker_client.__all__)
    assert issubclass(worker_client.ConfigurationError, worker_client.RoutingHintsError)
    assert {"FakeClient", "InProcessSidecar"} <= set(vars(testing))
