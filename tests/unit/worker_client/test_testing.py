"""The public testing module, used as a worker's own tests use it; and the public names."""

from __future__ import annotations

import worker_client
from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import build_answer, build_profile, build_request
from worker_client import ClientConfig, Origin, Phase, RankDirective, RoutingHintClient, testing
from worker_client.testing import FakeClient, InProcessSidecar


async def test_fake_client_answers_structured_carriers_by_default() -> None:
    """As a sidecar would for them."""
    client = FakeClient()
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile()) as plan:
        assert (plan.answer.origin, plan.conversation_id) == (Origin.SIDECAR, "conversation-0001")
    assert [question.facts.model for question in client.questions] == ["m"]
    assert len(client.finishes) == 1


async def test_fake_client_answers_what_it_is_told() -> None:
    """The function sees facts and engine."""
    client = FakeClient(lambda facts, engine: build_answer(RankDirective.PLACE, dp_rank=engine.dp_size - 1))
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    assert plan.answer.dp_rank == 3


async def test_fake_client_needs_no_sidecar_to_be_entered_and_left() -> None:
    """A worker's own start and stop run in its tests too."""
    async with FakeClient() as client:
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    late = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    assert (plan.reason, late.reason) == ("", "client-closed")


async def test_in_process_sidecar_answers_over_a_real_socket_and_records() -> None:
    """Questions and ends of requests can be looked at afterwards."""
    async with InProcessSidecar() as sidecar:
        async with (
            RoutingHintClient(ClientConfig(sidecar.target, unknown_timeout_s=30.0)) as client,
            client.plan(build_request(rank=2), phase=Phase.PREFILL, engine=build_profile()) as plan,
        ):
            assert (plan.reason, plan.conversation_id) == ("", "conversation-0001")
            plan.engine_kwargs()
        assert [request.hints.dp_rank for request in sidecar.requests] == [2]
        assert [finish.id_attached for finish in sidecar.finishes] == [True]


async def test_in_process_sidecar_answers_what_it_is_told() -> None:
    """The function sees the message as it came over the wire."""

    def forward(request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
        return service_pb2.EnrichResponse(
            rank_directive=types_pb2.RANK_DIRECTIVE_FORWARD, notices=[request.engine.instance_id]
        )

    async with (
        InProcessSidecar(forward) as sidecar,
        RoutingHintClient(ClientConfig(sidecar.target, unknown_timeout_s=30.0)) as client,
    ):
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
        assert plan.notices == ("engine-1",)


def test_public_names_are_pinned() -> None:
    """Adding is a decision, removing a breaking change."""
    assert worker_client.__all__ == [
        "AdpRouter",
        "Affinity",
        "Answer",
        "ClientConfig",
        "ConfigurationError",
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
