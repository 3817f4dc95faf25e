"""The RPCs of a sidecar, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarServer

_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)
_SERVICES = (service_pb2, "RoutingHintsService"), (admin_pb2, "RoutingHintsAdminService")


def _request(session_id: str = "conv-7f3a", **fields: object) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(
        **{  # type: ignore[arg-type]
            "request_id": "request-1",
            "phase": types_pb2.PHASE_PREFILL,
            "identity": types_pb2.Identity(headers={"X-Session-ID": session_id}),
            "engine": _ENGINE,
            **fields,
        }
    )


@pytest.fixture
async def channel(sidecar: SidecarServer) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a sidecar with the embedded policy."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        yield channel


@pytest.fixture
def hints(channel: grpc.aio.Channel) -> service_pb2_grpc.RoutingHintsServiceStub:
    """The request path."""
    return service_pb2_grpc.RoutingHintsServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> admin_pb2_grpc.RoutingHintsAdminServiceStub:
    """The admin service."""
    return admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)


async def test_enrich_answers_with_id_and_directive(hints: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """The whole answer to a request with a session header."""
    answer = await hints.Enrich(_request())
    assert answer.decision_id
    assert len(answer.policy_revision) == len(answer.identity_epoch) == 12
    answer.ClearField("decision_id")
    answer.ClearField("policy_revision")
    answer.ClearField("identity_epoch")
    assert answer == service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id="conv-7f3a", affinity_key="conv-7f3a"),
        rank_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        source=types_pb2.IDENTITY_SOURCE_HEADER,
        source_detail="header:x-session-id",
        decision=types_pb2.DECISION_NONE,
        conversation_hash="7c5832ae00b4609f",
    )


async def test_an_answer_without_an_id_has_no_hints(hints: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """No identity is no error."""
    answer = await hints.Enrich(_request(identity=None))
    assert not answer.HasField("hints")
    assert answer.source == types_pb2.IDENTITY_SOURCE_NONE
    assert answer.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert list(answer.notices) == ["no-conversation-id"]


async def test_legs_and_sidecars_agree_on_the_id(
    start_sidecar: Callable[[], Awaitable[SidecarServer]],
) -> None:
    """Both legs of a request and two sidecars derive the same id."""
    ids = set()
    for _ in range(2):
        server = await start_sidecar()
        async with grpc.aio.insecure_channel(server.target) as channel:
            stub = service_pb2_grpc.RoutingHintsServiceStub(channel)
            for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
                answer = await stub.Enrich(_request("1", tenant="tenant-a", phase=phase))
                ids.add(answer.hints.conversation_id)
    assert ids == {"rh1-a061aa27cd14682eec8ea9efe44a4101"}


async def test_explain_is_not_recorded(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """An explanation gives the answer, every carrier and the rules, and leaves no trace."""
    explained = await hints.Explain(service_pb2.ExplainRequest(request=_request()))
    assert explained.answer.decision_id == ""
    verdicts = {carrier.name: carrier.verdict for carrier in explained.carriers}
    assert verdicts.pop("header:x-session-id") == service_pb2.CARRIER_VERDICT_TAKEN
    assert len(verdicts) > 30
    assert set(verdicts.values()) == {service_pb2.CARRIER_VERDICT_ABSENT}
    assert explained.rules[-1] == service_pb2.RuleTrace(rule="conversation-router-engine-rank", matched=True)
    assert list((await admin.GetStats(admin_pb2.GetStatsRequest())).counters) == []
    answer = await hints.Enrich(_request())
    answer.ClearField("decision_id")
    assert explained.answer == answer


async def test_a_decision_is_shown_without_ids(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """GetDecision finds it by both names and shows hash and directive, and no id."""
    answer = await hints.Enrich(_request(worker_id="w"))
    by_id = await admin.GetDecision(admin_pb2.GetDecisionRequest(decision_id=answer.decision_id))
    by_request = await admin.GetDecision(admin_pb2.GetDecisionRequest(request_id="request-1"))
    assert by_id == by_request
    assert (by_id.request_id, by_id.worker_id, by_id.phase) == ("request-1", "w", types_pb2.PHASE_PREFILL)
    assert by_id.id_attached
    assert not by_id.HasField("finish")
    answer.ClearField("hints")
    assert by_id.answer == answer


async def test_a_finish_is_shown_with_its_decision(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """What the worker reported comes back as it was sent."""
    stream = hints.EnrichStream()
    await stream.write(
        service_pb2.EnrichStreamRequest(
            hello=service_pb2.StreamHello(worker_id="w", engine=_ENGINE),
            items=[service_pb2.EnrichItem(seq=7, request=_request(engine=None))],
        )
    )
    await stream.read()
    finish = service_pb2.Finish(
        request_id="request-1",
        phase=types_pb2.PHASE_PREFILL,
        outcome=service_pb2.FINISH_OUTCOME_CANCELLED,
        applied_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        id_attached=True,
        local_reason="late",
        observed_dp_rank=0,
        cached_tokens=128,
        seq=7,
    )
    await stream.write(service_pb2.EnrichStreamRequest(finishes=[finish]))
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    decision = await admin.GetDecision(admin_pb2.GetDecisionRequest(request_id="request-1"))
    assert decision.finish == finish


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (admin_pb2.GetDecisionRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        (admin_pb2.GetDecisionRequest(decision_id="x"), grpc.StatusCode.NOT_FOUND),
        (admin_pb2.GetDecisionRequest(request_id="x"), grpc.StatusCode.NOT_FOUND),
        (admin_pb2.GetConversationRequest(conversation_hash="x"), grpc.StatusCode.NOT_FOUND),
        (admin_pb2.ListConversationsRequest(page_size=1_001), grpc.StatusCode.INVALID_ARGUMENT),
        (admin_pb2.ListConversationsRequest(page_token="x"), grpc.StatusCode.INVALID_ARGUMENT),  # noqa: S106
    ],
)
async def test_the_admin_service_refuses_what_it_has_not(
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub, request_: object, code: grpc.StatusCode
) -> None:
    """An unknown name is NOT_FOUND and a bad page INVALID_ARGUMENT."""
    call = getattr(admin, type(request_).__name__.removesuffix("Request"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request_)
    assert caught.value.code() is code


async def test_the_table_of_conversations_is_empty(
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub,
) -> None:
    """While the sidecar places on no leg, there is nothing to list and nothing to end."""
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest(page_size=1_000))
    assert listed == admin_pb2.ListConversationsResponse()
    ended = await admin.EndConversation(admin_pb2.EndConversationRequest(conversation_hash="x"))
    assert ended.ended == 0


async def test_the_policy_in_force_is_shown(
    start_sidecar: Callable[[str], Awaitable[SidecarServer]],
) -> None:
    """GetPolicy shows the whole policy with its hashes."""
    server = await start_sidecar("identity: {scope: off}")
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        shown = await stub.GetPolicy(admin_pb2.GetPolicyRequest())
        answer = await service_pb2_grpc.RoutingHintsServiceStub(channel).Enrich(_request())
    assert "scope: 'off'" in shown.yaml
    assert "mode: 'on'" in shown.yaml
    assert (shown.origin, shown.last_error) == ("embedded", "")
    assert (shown.revision, shown.identity_epoch) == (answer.policy_revision, answer.identity_epoch)
    assert shown.loaded_at.seconds > 0


async def test_stats_count_what_happened(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """Decisions, notices, last requests, refusals and finishes are counted."""
    await hints.Enrich(_request())
    last = types_pb2.Identity(session_control=types_pb2.SessionControl(session_id="a", action="close"))
    await hints.Enrich(_request(identity=last, engine=None))
    with pytest.raises(grpc.aio.AioRpcError):
        await hints.Enrich(service_pb2.EnrichRequest())
    stream = hints.EnrichStream()
    await stream.write(
        service_pb2.EnrichStreamRequest(
            items=[service_pb2.EnrichItem(seq=1)],
            finishes=[service_pb2.Finish(decision_id="x"), service_pb2.Finish(local_reason="x" * 257)],
        )
    )
    await stream.read()
    stats = await admin.GetStats(admin_pb2.GetStatsRequest())
    assert stats.open_streams == 1
    counted = {(c.name, *(f"{k}={c.labels[k]}" for k in sorted(c.labels))): c.value for c in stats.counters}
    common = ("decision=none",)
    assert counted == {
        ("decisions", *common, "directive=withhold", "mode=on", "phase=prefill", "source=header"): 1,
        ("decisions", *common, "directive=forward", "mode=on", "phase=prefill", "source=session_control"): 1,
        ("notices", "notice=adp-router-unknown"): 1,
        ("identities", "carrier=header:x-session-id"): 1,
        ("identities", "carrier=session_control.session_id"): 1,
        ("distinct_ids", "carrier=header:x-session-id"): 1,
        ("distinct_ids", "carrier=session_control.session_id"): 1,
        ("notices", "notice=session-final"): 1,
        ("final_requests",): 1,
        ("ended_conversations", "known=false"): 1,
        ("failed_calls", "code=invalid_argument"): 1,
        ("streams",): 1,
        ("refused_items", "code=invalid_argument"): 1,
        ("finishes", "applied_directive=unspecified", "id_attached=false", "outcome=completed"): 1,
        ("unmatched_finishes",): 1,
        ("refused_finishes",): 1,
    }
    stream.cancel()


async def test_every_rpc_of_the_contract_is_served(channel: grpc.aio.Channel) -> None:
    """No method of either service is UNIMPLEMENTED."""
    for module, name in _SERVICES:
        service = module.DESCRIPTOR.services_by_name[name]
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            try:
                if method.client_streaming:
                    stream = channel.stream_stream(path)()
                    await stream.done_writing()
                    await stream.read()
                else:
                    await channel.unary_unary(path)(b"")
            except grpc.aio.AioRpcError as error:
                assert error.code() is not grpc.StatusCode.UNIMPLEMENTED, path  # noqa: PT017, some succeed


async def test_reflection_lists_the_services(sidecar: SidecarServer) -> None:
    """A person with grpcurl sees every service and its messages."""

    def list_services() -> tuple[list[str], str]:
        with grpc.insecure_channel(sidecar.target) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol("routing_hints.v1.EnrichRequest")
            return list(database.get_services()), file.name

    services, file = await asyncio.to_thread(list_services)
    assert sorted(services) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "routing_hints.v1.RoutingHintsAdminService",
        "routing_hints.v1.RoutingHintsService",
    ]
    assert file == "routing_hints/v1/service.proto"


@pytest.mark.parametrize(
    "name", ["", "routing_hints.v1.RoutingHintsService", "routing_hints.v1.RoutingHintsAdminService"]
)
async def test_health_is_shown_for_each_service(channel: grpc.aio.Channel, name: str) -> None:
    """The whole and both services are SERVING."""
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_health_of_another_service_is_unknown(channel: grpc.aio.Channel) -> None:
    """As the health protocol says: Check fails and Watch tells."""
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
