"""The RPCs of a sidecar, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from routing_hints.v1 import admin_pb2, service_pb2, types_pb2
from tests.support.messages import (
    CONVERSATION,
    CONVERSATION_HASH,
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_request,
)
from tests.support.sidecar import SidecarServer, get_stats, sum_metric

_SERVICES = (service_pb2, "RoutingHintsService"), (admin_pb2, "RoutingHintsAdminService")
_make_request = partial(make_request, engine=PINNING_ENGINE)


async def test_enrich_responds_with_id_and_directive(hints: HintsStub) -> None:
    decision = await hints.Enrich(_make_request())
    assert decision.decision_id
    assert len(decision.policy_revision) == len(decision.identity_epoch) == 12
    decision.ClearField("decision_id")
    decision.ClearField("policy_revision")
    decision.ClearField("identity_epoch")
    assert decision == service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id=CONVERSATION, affinity_key=CONVERSATION),
        rank_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        source=types_pb2.IDENTITY_SOURCE_HEADER,
        source_detail="header:x-session-id",
        placement=types_pb2.PLACEMENT_STATE_NONE,
        conversation_hash=CONVERSATION_HASH,
        reusable=True,
    )


async def test_a_missing_identity_is_no_error_and_its_decision_has_no_hints(hints: HintsStub) -> None:
    decision = await hints.Enrich(_make_request(identity=None))
    assert not decision.HasField("hints")
    assert decision.source == types_pb2.IDENTITY_SOURCE_NONE
    assert decision.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert list(decision.notices) == ["no-conversation-id"]


async def test_phases_and_sidecars_derive_the_same_id(
    start_sidecar: Callable[[], Awaitable[SidecarServer]], open_channel: OpenChannel
) -> None:
    ids = set()
    for _ in range(2):
        hints = HintsStub(await open_channel((await start_sidecar()).target))
        for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
            decision = await hints.Enrich(_make_request("1", tenant="tenant-a", phase=phase))
            ids.add(decision.hints.conversation_id)
    assert ids == {"rh1-a061aa27cd14682eec8ea9efe44a4101"}


async def test_an_explanation_is_the_decision_with_its_reasons_and_is_not_recorded(
    hints: HintsStub, admin: AdminStub
) -> None:
    before = (await get_stats(admin)).metrics
    explained = await hints.Explain(service_pb2.ExplainRequest(request=_make_request()))
    assert explained.decision.decision_id == ""
    verdicts = {carrier.name: carrier.verdict for carrier in explained.carriers}
    assert verdicts.pop("header:x-session-id") == service_pb2.CARRIER_VERDICT_TAKEN
    assert len(verdicts) > 30
    assert set(verdicts.values()) == {service_pb2.CARRIER_VERDICT_ABSENT}
    assert explained.rules[-1] == service_pb2.RuleTrace(rule="conversation-router-engine-rank", matched=True)
    assert (await get_stats(admin)).metrics == before
    decision = await hints.Enrich(_make_request())
    decision.ClearField("decision_id")
    assert explained.decision == decision


async def test_a_decision_is_found_by_both_names_and_shown_without_ids(
    hints: HintsStub, admin: AdminStub
) -> None:
    decision = await hints.Enrich(_make_request(worker_id="w"))
    by_id = await admin.GetDecision(admin_pb2.GetDecisionRequest(decision_id=decision.decision_id))
    by_request = await admin.GetDecision(admin_pb2.GetDecisionRequest(request_id="request-1"))
    assert by_id == by_request
    assert (by_id.request_id, by_id.worker_id, by_id.phase) == ("request-1", "w", types_pb2.PHASE_PREFILL)
    assert by_id.id_attached
    assert not by_id.HasField("finish")
    decision.ClearField("hints")
    assert by_id.decision == decision


async def test_a_finish_report_is_shown_with_its_decision(admin: AdminStub, stream: WorkerStream) -> None:
    await stream.open(PINNING_ENGINE)
    await stream.enrich(make_request(engine_instance=PINNING_ENGINE.instance_id))
    finish = service_pb2.Finish(
        request_id="request-1",
        phase=types_pb2.PHASE_PREFILL,
        outcome=service_pb2.FINISH_OUTCOME_CANCELLED,
        applied_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        id_attached=True,
        local_reason="sidecar-timed-out",
        observed_dp_rank=0,
        cached_tokens=128,
        seq=stream.last_seq,
    )
    await stream.finish(finish)
    await stream.call.done_writing()
    assert await stream.call.read() == grpc.aio.EOF
    recorded = await admin.GetDecision(admin_pb2.GetDecisionRequest(request_id="request-1"))
    assert recorded.finish == finish


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
async def test_the_admin_service_refuses_unknown_names_and_bad_pages(
    admin: AdminStub, request_: object, code: grpc.StatusCode
) -> None:
    call = getattr(admin, type(request_).__name__.removesuffix("Request"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request_)
    assert caught.value.code() is code


async def test_while_the_sidecar_places_nothing_there_is_no_conversation_to_list_or_end(
    admin: AdminStub,
) -> None:
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest(page_size=1_000))
    assert listed == admin_pb2.ListConversationsResponse()
    ended = await admin.EndConversation(admin_pb2.EndConversationRequest(conversation_hash="x"))
    assert ended.ended == 0


async def test_get_policy_shows_the_whole_policy_with_its_hashes(
    start_sidecar: Callable[[str], Awaitable[SidecarServer]], open_channel: OpenChannel
) -> None:
    channel = await open_channel((await start_sidecar("identity: {scope: off}")).target)
    shown = await AdminStub(channel).GetPolicy(admin_pb2.GetPolicyRequest())
    decision = await HintsStub(channel).Enrich(_make_request())
    assert "scope: 'off'" in shown.yaml
    assert "mode: 'on'" in shown.yaml
    assert (shown.origin, shown.last_error) == ("embedded", "")
    assert (shown.revision, shown.identity_epoch) == (decision.policy_revision, decision.identity_epoch)
    assert shown.loaded_at.seconds > 0


async def test_get_stats_counts_what_happened(
    hints: HintsStub, admin: AdminStub, stream: WorkerStream
) -> None:
    await hints.Enrich(_make_request())
    last = types_pb2.Identity(session_control=types_pb2.SessionControl(session_id="a", action="close"))
    await hints.Enrich(make_request(identity=last))
    with pytest.raises(grpc.aio.AioRpcError):
        await hints.Enrich(service_pb2.EnrichRequest())
    await stream.exchange(
        service_pb2.EnrichRequest(),
        finishes=[service_pb2.Finish(decision_id="x"), service_pb2.Finish(local_reason="x" * 257)],
    )
    counted = {
        (metric.name, *(f"{label}={metric.labels[label]}" for label in sorted(metric.labels))): metric.value
        for metric in (await get_stats(admin)).metrics
        if metric.name not in ("affinity_active_ratio", "build_info", "policy_info")
    }
    common = ("mode=on", "phase=prefill", "placement=none")
    assert counted == {
        ("decisions", "directive=withhold", *common, "source=header"): 1,
        ("decisions", "directive=forward", *common, "source=session_control"): 1,
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
        ("open_streams",): 1,
        ("policy_rejected",): 0,
        ("refused_items", "code=invalid_argument"): 1,
        ("finishes", "applied_directive=unspecified", "id_attached=false", "outcome=completed"): 1,
        ("withheld_without_id",): 0,
        ("internal_errors",): 0,
        ("unmatched_finishes",): 1,
        ("refused_finishes",): 1,
    }


async def test_get_stats_shows_who_has_a_stream_open(
    sidecar: SidecarServer, admin: AdminStub, open_channel: OpenChannel
) -> None:
    workers = [("worker-a", "0.1.0"), ("worker-b", "0.2.0"), ("", "")]
    streams = []
    for worker_id, client_version in workers:
        streams.append(WorkerStream(HintsStub(await open_channel(sidecar.target))))
        await streams[-1].open(worker_id=worker_id, client_version=client_version)
    stats = await get_stats(admin)
    assert [(shown.worker_id, shown.client_version) for shown in stats.streams] == workers
    opened_at = [shown.opened_at.ToNanoseconds() for shown in stats.streams]
    assert stats.started_at.ToNanoseconds() <= opened_at[0]
    assert opened_at == sorted(opened_at)
    await streams[1].call.done_writing()
    assert await streams[1].call.read() == grpc.aio.EOF
    left = [shown.worker_id for shown in (await get_stats(admin)).streams]
    assert left == ["worker-a", ""]
    assert await sum_metric(admin, "open_streams") == 2
    for stream in streams:
        stream.close()


async def test_every_rpc_of_the_contract_is_served(channel: grpc.aio.Channel) -> None:
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
    """By the synchronous client, as a person with grpcurl sees them."""

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
async def test_health_is_serving_for_each_service_and_the_whole(channel: grpc.aio.Channel, name: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_health_of_another_service_is_unknown(channel: grpc.aio.Channel) -> None:
    """The health protocol wants it twofold: Check fails, and Watch has a status for it."""
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
