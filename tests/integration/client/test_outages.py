"""Every way a sidecar can be unavailable: its reason, one warning per outage, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from routing_hints.v1 import service_pb2
from tests.support.builders import ENGINE, build_request
from tests.support.scripted_sidecar import (
    Stream,
    behave,
    connect,
    plan_until,
    request_plan,
    run_server,
    run_sidecar,
)
from worker_client import ClientConfig, Origin, Phase, RoutingHintClient

_NOBODY = 65534


@asynccontextmanager
async def nothing(path: Path) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def stale_socket(path: Path) -> AsyncIterator[None]:
    """A socket file that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    yield
    os.unlink(path)


@asynccontextmanager
async def forbidden_socket(path: Path) -> AsyncIterator[None]:
    """A socket that this user may not connect to; root may, and becomes nobody for as long."""
    user = os.geteuid()
    async with run_sidecar(path):
        os.chmod(path, 0)
        os.seteuid(user or _NOBODY)
        try:
            yield
        finally:
            os.seteuid(user)


@asynccontextmanager
async def another_protocol(path: Path) -> AsyncIterator[None]:
    """A server that speaks, but no HTTP/2."""

    async def talk(_reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    async with await asyncio.start_unix_server(talk, path):
        yield
        gone.set()
    path.unlink(missing_ok=True)  # noqa: ASYNC240  the server has done it already from Python 3.13 on


@asynccontextmanager
async def another_service(path: Path) -> AsyncIterator[None]:
    """A gRPC server without our service."""
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    yield
    await server.stop(grace=None)


@asynccontextmanager
async def service_without_the_stream(path: Path) -> AsyncIterator[None]:
    """A server that has the contract's service, but of its methods Enrich alone."""

    async def enrich(request: service_pb2.EnrichRequest, context: Any) -> service_pb2.EnrichResponse:
        calls.append(request)
        return service_pb2.EnrichResponse()

    calls: list[service_pb2.EnrichRequest] = []
    handler = grpc.unary_unary_rpc_method_handler(
        enrich,
        request_deserializer=service_pb2.EnrichRequest.FromString,
        response_serializer=service_pb2.EnrichResponse.SerializeToString,
    )
    async with run_server(path, {"Enrich": handler}):
        yield
    assert calls == []


@asynccontextmanager
async def mute_socket(path: Path) -> AsyncIterator[None]:
    """A listener that never accepts, as of a stopped process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield
    os.unlink(path)


@pytest.mark.parametrize(
    ("outage", "reason"),
    [
        (nothing, "socket-missing"),
        (stale_socket, "connection-refused"),
        (forbidden_socket, "permission-denied"),
        (another_protocol, "not-grpc"),
        (another_service, "grpc-unimplemented"),
        (service_without_the_stream, "grpc-unimplemented"),
        (mute_socket, "connection-timed-out"),
    ],
)
async def test_an_outage_has_its_reason_and_one_warning_and_ends_by_itself(
    tmp_path: Path, outage: Callable[[Path], AbstractAsyncContextManager[None]], reason: str
) -> None:
    path = tmp_path / "s"
    config = ClientConfig(f"unix://{path}", known_timeout_s=30.0, unknown_timeout_s=30.0)
    with capture_logs() as lines:
        # The outage is there before the client, which would find what comes before it.
        async with AsyncExitStack() as outages:
            await outages.enter_async_context(outage(path))
            async with RoutingHintClient(config) as client:
                plan = await plan_until(client, reason)
                for _ in range(20):
                    await request_plan(client)
                assert (plan.decision.origin, plan.conversation_id) == (
                    Origin.LOCAL_RULE,
                    "conversation-0001",
                )
                await outages.aclose()
                async with run_sidecar(path):
                    recovered = await plan_until(client, "")
                    await client.close()
    assert recovered.conversation_id == "sidecar:conversation-0001"
    assert reason in client.stats()["stream_lost"]
    logged = [(line["log_level"], line["event"], line.get("reason")) for line in lines]
    assert [entry for entry in logged if entry[1].startswith("sidecar")] == [
        ("warning", "sidecar_unavailable", reason),
        ("info", "sidecar_recovered", None),
    ]


async def test_each_outage_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with capture_logs() as lines:
        async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=5.0)) as client:
            await plan_until(client, "socket-missing")
            for _ in range(2):
                async with run_sidecar(path):
                    await plan_until(client, "")
                await plan_until(client, "socket-missing")
    events = [line["event"] for line in lines if line["event"].startswith("sidecar")]
    assert events == [*["sidecar_unavailable", "sidecar_recovered"] * 2, "sidecar_unavailable"]


async def test_a_stream_that_ends_releases_its_callers_at_once(tmp_path: Path) -> None:
    """Nobody waits out a deadline of half a minute for a decision that can't come."""

    async def end_on_first_item(stream: Stream) -> None:
        await stream.greet()
        await stream.read_items()

    async with connect(tmp_path / "s", end_on_first_item) as (sidecar, client):
        plans = await asyncio.gather(*(request_plan(client, f"conversation-{n}") for n in range(50)))
        assert {plan.reason for plan in plans} == {"no-response"}
        assert {plan.decision.origin for plan in plans} == {Origin.LOCAL_RULE}
        sidecar.converse = behave
        await plan_until(client, "")
        await client.close()
    of_the_lost_stream = sidecar.finishes[:50]
    assert [finish.seq for finish in of_the_lost_stream] == [0] * 50
    assert {finish.local_reason for finish in of_the_lost_stream} == {"no-response"}


async def test_closing_sends_the_finish_reports_that_are_still_unsent(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        plans = [
            await client.plan(build_request(f"c-{n}"), phase=Phase.PREFILL, engine=ENGINE) for n in range(600)
        ]
        for plan in plans:
            plan.finish()
        await client.close()
        assert len(sidecar.finishes) == 600
        assert {finish.decision_id for finish in sidecar.finishes} == {f"d-{n}" for n in range(1, 601)}
        after = await request_plan(client)
    assert (after.reason, after.conversation_id) == ("client-closed", None)


async def test_finish_reports_of_an_outage_are_sent_when_it_is_over(tmp_path: Path) -> None:
    """By decision id, and without the number that an earlier stream gave the item."""
    path = tmp_path / "s"
    async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=30.0)) as client:
        async with run_sidecar(path):
            plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
        await plan_until(client, "socket-missing")
        plan.finish()
        async with run_sidecar(path) as again:
            await again.wait_until(
                "a finish report", lambda: any(finish.decision_id for finish in again.finishes)
            )
    finishes = [(finish.decision_id, finish.seq) for finish in again.finishes if finish.decision_id]
    assert finishes == [("d-1", 0)]
