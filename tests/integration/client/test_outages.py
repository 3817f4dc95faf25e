"""Every way a sidecar can be away: its reason token, one warning per episode, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from tests.support.builders import build_profile, build_request
from tests.support.scripted_sidecar import (
    Stream,
    ask,
    ask_until,
    behave,
    build_answer,
    build_policy,
    connect,
    run_sidecar,
)
from worker_client import ClientConfig, Origin, Phase, Plan, RoutingHintClient

ENGINE = build_profile()
_NOBODY = 65534


@asynccontextmanager
async def nothing(path: Path) -> AsyncIterator[None]:
    """There is no socket."""
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
        (mute_socket, "connection-timed-out"),
    ],
)
async def test_outage_has_its_token_one_warning_and_ends_by_itself(
    tmp_path: Path, outage: Callable[[Path], AbstractAsyncContextManager[None]], reason: str
) -> None:
    """However it is away, requests go on, and on the same path the sidecar is found again."""
    path = tmp_path / "s"
    config = ClientConfig(f"unix://{path}", known_timeout_s=30.0, unknown_timeout_s=30.0)
    with capture_logs() as lines:
        # The outage is there before the client, which would find what comes before it.
        async with AsyncExitStack() as outages:
            await outages.enter_async_context(outage(path))
            async with RoutingHintClient(config) as client:
                plan = await ask_until(client, reason)
                for _ in range(20):
                    await ask(client)
                assert (plan.answer.origin, plan.conversation_id) == (Origin.LOCAL_RULE, "conversation-0001")
                await outages.aclose()
                async with run_sidecar(path):
                    recovered = await ask_until(client, "")
                    await client.close()
    assert recovered.conversation_id == "sidecar:conversation-0001"
    said = [(line["log_level"], line["event"], line.get("reason")) for line in lines]
    assert [entry for entry in said if entry[1].startswith("sidecar")] == [
        ("warning", "sidecar_silent", reason),
        ("info", "sidecar_recovered", None),
    ]


async def test_each_episode_is_said_once(tmp_path: Path) -> None:
    """Two restarts make two warnings and two recoveries."""
    path = tmp_path / "s"
    with capture_logs() as lines:
        async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=5.0)) as client:
            await ask_until(client, "socket-missing")
            for _ in range(2):
                async with run_sidecar(path):
                    await ask_until(client, "")
                await ask_until(client, "socket-missing")
    events = [line["event"] for line in lines if line["event"].startswith("sidecar")]
    assert events == [*["sidecar_silent", "sidecar_recovered"] * 2, "sidecar_silent"]


async def test_stream_that_ends_mid_way_releases_its_callers_at_once(tmp_path: Path) -> None:
    """Nobody waits out a deadline of half a minute for an answer that can't come."""

    async def end_on_first_item(stream: Stream) -> None:
        await stream.greet()
        while not (message := await stream.read()) or not message.items:
            pass

    async with connect(tmp_path / "s", end_on_first_item) as (sidecar, client):
        plans = await asyncio.gather(*(ask(client, f"conversation-{n}") for n in range(50)))
        assert {plan.reason for plan in plans} == {"sidecar-gave-no-answer"}
        assert {plan.answer.origin for plan in plans} == {Origin.LOCAL_RULE}
        sidecar.converse = behave
        await ask_until(client, "")
        await client.close()
    late = sidecar.finishes[:50]
    assert [finish.seq for finish in late] == [0] * 50
    assert {finish.local_reason for finish in late} == {"sidecar-gave-no-answer"}


async def test_policy_may_change_in_mid_stream(tmp_path: Path) -> None:
    """From then on other carriers are sent, and what the old one answered is not used any more."""
    silent = asyncio.Event()

    async def change_policy(stream: Stream) -> None:
        await stream.greet()
        await stream.read()
        second = build_policy("r2", identity_headers=["x-session-id"])
        await stream.write(build_answer(stream.sidecar.items[0], "r1"), policy=second)
        while message := await stream.read():
            if not silent.is_set():
                await stream.write(*(build_answer(item, "r2") for item in message.items))

    async with connect(tmp_path / "s", change_policy, unknown_timeout_s=0.5) as (sidecar, client):
        headers = {"x-session-id": "h"}
        await ask(client, headers=headers)
        await ask(client, "other", headers=headers)
        silent.set()
        known = await ask(client, headers=headers)
        stats = client.stats()
    assert [dict(item.request.identity.headers) for item in sidecar.items[:2]] == [{}, headers]
    assert (known.answer.origin, known.answer.policy_revision) == (Origin.LOCAL_RULE, "r2")
    assert stats["policy_received"] == {"": 2}


async def _ask_across_a_change(path: Path, **names: list[str]) -> tuple[Plan, Plan]:
    """Two requests of one conversation: the policy changes under the first, the second gets no answer."""

    async def change_and_fall_silent(stream: Stream) -> None:
        await stream.greet()
        await stream.read()
        second = build_policy("r2", **names)
        await stream.write(build_answer(stream.sidecar.items[0], "r2"), policy=second)
        while await stream.read():
            pass

    async with connect(path, change_and_fall_silent, known_timeout_s=0.01, unknown_timeout_s=0.5) as (
        _,
        client,
    ):
        headers = {"x-session-id": "h"}
        return await ask(client, headers=headers), await ask(client, headers=headers)


async def test_answer_by_a_policy_that_came_under_way_is_remembered(tmp_path: Path) -> None:
    """The new policy reads what was sent, so its answer is the conversation's."""
    asked, again = await _ask_across_a_change(tmp_path / "s")
    assert (asked.answer.origin, asked.answer.policy_revision) == (Origin.SIDECAR, "r2")
    assert (again.answer.origin, again.conversation_id) == (Origin.MEMORY, asked.conversation_id)


async def test_answer_by_a_policy_that_reads_other_carriers_is_not_remembered(tmp_path: Path) -> None:
    """The header that it reads too was not sent, so it might have answered otherwise."""
    asked, again = await _ask_across_a_change(tmp_path / "s", identity_headers=["x-session-id"])
    assert (asked.answer.origin, again.answer.origin) == (Origin.SIDECAR, Origin.LOCAL_RULE)


async def test_closing_sends_the_ends_that_are_still_unsent(tmp_path: Path) -> None:
    """A worker that stops loses no report."""
    async with connect(tmp_path / "s") as (sidecar, client):
        plans = [
            await client.plan(build_request(f"c-{n}"), phase=Phase.PREFILL, engine=ENGINE) for n in range(600)
        ]
        for plan in plans:
            plan.finish()
        await client.close()
        assert len(sidecar.finishes) == 600
        assert {finish.decision_id for finish in sidecar.finishes} == {f"d-{n}" for n in range(1, 601)}
        after = await ask(client)
    assert (after.reason, after.conversation_id) == ("client-closed", None)


async def test_ends_of_an_outage_are_sent_when_it_is_over(tmp_path: Path) -> None:
    """By decision id, and without the number that an earlier stream gave the item."""
    path = tmp_path / "s"
    async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=30.0)) as client:
        async with run_sidecar(path):
            plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
        await ask_until(client, "socket-missing")
        plan.finish()
        async with run_sidecar(path) as again:
            await again.wait_for(lambda: any(finish.decision_id for finish in again.finishes))
    assert [(end.decision_id, end.seq) for end in again.finishes if end.decision_id] == [("d-1", 0)]
