"""A sidecar that has no stream RPC is asked one question at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from structlog.testing import capture_logs

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.scripted_sidecar import ask, ask_until, run_sidecar
from worker_client import ClientConfig, Origin, RoutingHintClient

SERVICE = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"].full_name


def answer(request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
    """Attaches `unary:` and the session id."""
    session_id = request.identity.agent_context.session_id or request.identity.headers.get("x-session-id")
    return service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id=f"unary:{session_id}"),
        rank_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        conversation_hash="0123456789abcdef",
        policy_revision="r1",
    )


@asynccontextmanager
async def run_unary_sidecar(path: Path) -> AsyncIterator[list[service_pb2.EnrichRequest]]:
    """A server that knows Enrich and no stream; gives the questions that it answered."""
    asked: list[service_pb2.EnrichRequest] = []

    async def enrich(request: service_pb2.EnrichRequest, context: Any) -> service_pb2.EnrichResponse:
        if not request.phase or request.identity.agent_context.session_id.startswith("refused"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "phase: must be set")
        asked.append(request)
        return answer(request)

    handler = grpc.unary_unary_rpc_method_handler(
        enrich,
        request_deserializer=service_pb2.EnrichRequest.FromString,
        response_serializer=service_pb2.EnrichResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Enrich": handler}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield asked
    finally:
        await server.stop(grace=None)


def make_client(path: Path) -> RoutingHintClient:
    """A client that no deadline hurries."""
    return RoutingHintClient(ClientConfig(f"unix://{path}", known_timeout_s=30.0, unknown_timeout_s=30.0))


async def test_sidecar_without_a_stream_is_asked_by_unary_calls_and_that_is_said_once(tmp_path: Path) -> None:
    """Its answer is the plan's, and one line tells what is lost with the stream."""
    with capture_logs() as lines:
        async with run_unary_sidecar(tmp_path / "s") as asked, make_client(tmp_path / "s") as client:
            plans = [await ask(client, f"conversation-{number}") for number in range(3)]
    assert [plan.conversation_id for plan in plans] == [f"unary:conversation-{number}" for number in range(3)]
    assert {plan.answer.origin for plan in plans} == {Origin.SIDECAR}
    assert len(asked) == 3
    events = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert events == ["sidecar_without_stream"]


async def test_every_header_is_sent_to_a_sidecar_that_names_none(tmp_path: Path) -> None:
    """Without a policy the client can't know which header names the conversation; a secret is none."""
    headers = {"X-Session-ID": "by-header", "Accept": "*/*", "Authorization": "Bearer s", "Cookie": "s=1"}
    async with run_unary_sidecar(tmp_path / "s") as asked, make_client(tmp_path / "s") as client:
        plan = await ask(client, None, headers=headers)
    assert plan.conversation_id == "unary:by-header"
    assert dict(asked[0].identity.headers) == {"x-session-id": "by-header", "accept": "*/*"}


async def test_known_fields_of_the_body_are_sent_to_a_sidecar_that_names_none(tmp_path: Path) -> None:
    """A body's identity arrives there too, and what the user wrote does not."""
    body = {
        "metadata": {"user_id": '{"session_id":"s-1"}', "note": "private"},
        "conversation": {"id": "conv_1"},
        "messages": "private",
        "prompt": "private",
    }
    async with run_unary_sidecar(tmp_path / "s") as asked, make_client(tmp_path / "s") as client:
        await ask(client, None, body=body)
    assert dict(asked[0].identity.body) == {
        "metadata.user_id": '{"session_id":"s-1"}',
        "conversation.id": "conv_1",
    }


async def test_refused_question_falls_to_the_local_rule_and_the_next_is_asked(tmp_path: Path) -> None:
    """A status about one question ends nothing else."""
    async with run_unary_sidecar(tmp_path / "s"), make_client(tmp_path / "s") as client:
        refused = await ask(client, "refused-conversation")
        accepted = await ask(client, "conversation-0001")
    assert (refused.answer.origin, refused.conversation_id) == (Origin.LOCAL_RULE, "refused-conversation")
    assert (accepted.answer.origin, accepted.conversation_id) == (Origin.SIDECAR, "unary:conversation-0001")


async def test_stream_is_used_once_there_is_one(tmp_path: Path) -> None:
    """When the old sidecar goes and one with the stream comes, the client finds it by itself."""
    async with make_client(tmp_path / "s") as client:
        async with run_unary_sidecar(tmp_path / "s"):
            assert (await ask(client)).conversation_id == "unary:conversation-0001"
        async with run_sidecar(tmp_path / "s") as sidecar:
            plan = await ask_until(client, "")
            while not sidecar.items:
                plan = await ask(client)
    assert plan.conversation_id == "sidecar:conversation-0001"


async def test_closing_does_not_wait_for_a_question(tmp_path: Path) -> None:
    """A client that asks one by one ends by itself, without being cancelled."""
    async with run_unary_sidecar(tmp_path / "s"):
        client = make_client(tmp_path / "s")
        async with client:
            await ask(client)
        assert (await ask(client)).reason == "client-closed"
