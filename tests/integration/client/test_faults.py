"""The real sidecar process hangs, loses its socket or its log's disk; requests do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from tests.support.scripted_sidecar import limit, plan_until, poll, request_plan
from worker_client import ClientConfig, Origin, Plan, RoutingHintClient

pytestmark = pytest.mark.skipif(
    find_spec("pydantic") is None, reason="the sidecar's libraries are not installed"
)

StartProcess = Callable[..., Any]
BY_HEADER = {"headers": {"x-session-id": "named-by-a-header"}}


async def request_by_header(client: RoutingHintClient) -> Plan:
    """A request whose conversation only the sidecar, or memory, can name."""
    return await request_plan(client, None, **BY_HEADER)


def sidecar_events(lines: list[Any]) -> list[str]:
    return [line["event"] for line in lines if line["event"].startswith("sidecar_")]


async def test_a_stopped_sidecar_is_one_outage_and_decides_again_when_it_goes_on(
    start_sidecar_process: StartProcess,
) -> None:
    """While it hangs, memory decides for a known conversation and the local rule for a new one."""
    process = start_sidecar_process()
    config = ClientConfig(f"unix://{process.socket_path}", known_timeout_s=0.1, unknown_timeout_s=0.3)
    with capture_logs() as lines:
        async with RoutingHintClient(config) as client:
            await poll(
                "a decision of the sidecar",
                lambda: request_by_header(client),
                lambda plan: plan.decision.origin is Origin.SIDECAR,
                lambda plan: plan.reason,
            )
            process.signal(signal.SIGSTOP)
            await plan_until(client, "circuit-open")
            known, new = await request_by_header(client), await request_plan(client, "new-conversation-0001")
            process.signal(signal.SIGCONT)
            await plan_until(client, "")
            recovered = await request_by_header(client)
    assert (known.decision.origin, known.conversation_id) == (Origin.MEMORY, "named-by-a-header")
    assert (new.decision.origin, new.conversation_id) == (Origin.LOCAL_RULE, "new-conversation-0001")
    assert recovered.conversation_id == "named-by-a-header"
    assert sidecar_events(lines) == ["sidecar_unavailable", "sidecar_recovered"]


async def test_a_connection_outlives_its_socket_file_and_a_new_file_is_found(
    start_sidecar_process: StartProcess,
) -> None:
    first = start_sidecar_process()
    config = ClientConfig(f"unix://{first.socket_path}", known_timeout_s=30.0, unknown_timeout_s=30.0)
    async with RoutingHintClient(config) as client:
        await plan_until(client, "")
        first.socket_path.unlink()
        unharmed = await request_plan(client)
        first.signal(signal.SIGKILL)
        missing = await plan_until(client, "socket-missing")
        await asyncio.to_thread(start_sidecar_process)
        found = await plan_until(client, "")
    assert unharmed.decision.origin is Origin.SIDECAR
    assert missing.conversation_id == "conversation-0001"
    assert found.decision.origin is Origin.SIDECAR


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
async def test_a_full_disk_under_the_sidecars_log_stops_no_decision(
    socket_folder: Path, sidecar_environment: dict[str, str]
) -> None:
    path = socket_folder / "s"
    command = [sys.executable, "-m", "sidecar", "serve", "--listen", f"unix://{path}"]
    with open("/dev/full", "w") as full:  # noqa: ASYNC230  no disk behind it
        process = subprocess.Popen(command, stderr=full, env=sidecar_environment)  # noqa: ASYNC220
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await limit("the sidecar to listen", channel.channel_ready())
        async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=30.0)) as client:
            assert (await request_plan(client)).decision.origin is Origin.SIDECAR
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_worker_whose_log_fails_serves_all_the_same(tmp_path: Path) -> None:
    def fail(*_: object) -> Any:
        raise OSError("no space left on device")

    before = structlog.get_config()
    structlog.configure(processors=[fail])
    try:
        async with RoutingHintClient(ClientConfig(f"unix://{tmp_path}/missing")) as client:
            plan = await plan_until(client, "socket-missing")
            stats = client.stats()
    finally:
        structlog.configure(**before)
    assert plan.conversation_id == "conversation-0001"
    assert "internal_errors" not in stats
