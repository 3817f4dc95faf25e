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

from tests.support.scripted_sidecar import ask, ask_until
from worker_client import ClientConfig, Origin, RoutingHintClient

pytestmark = pytest.mark.skipif(
    find_spec("pydantic") is None, reason="the sidecar's libraries are not installed"
)

StartProcess = Callable[..., Any]
BY_HEADER = {"headers": {"x-session-id": "named-by-a-header"}}


async def ask_by_header(client: RoutingHintClient) -> Any:
    """A request whose conversation only the sidecar, or memory, can name."""
    return await ask(client, None, **BY_HEADER)


def sidecar_events(lines: list[Any]) -> list[str]:
    """What was said about the sidecar, in order."""
    return [line["event"] for line in lines if line["event"].startswith("sidecar_")]


async def test_stopped_sidecar_is_one_episode_and_answers_again_when_it_goes_on(
    start_sidecar_process: StartProcess,
) -> None:
    """While it hangs, memory answers for a known conversation and the local rule for a new one."""
    process = start_sidecar_process()
    config = ClientConfig(f"unix://{process.socket_path}", known_timeout_s=0.1, unknown_timeout_s=0.3)
    with capture_logs() as lines:
        async with RoutingHintClient(config) as client:
            while (await ask_by_header(client)).answer.origin is not Origin.SIDECAR:
                pass
            process.signal(signal.SIGSTOP)
            await ask_until(client, "unresponsive")
            known, new = await ask_by_header(client), await ask(client, "new-conversation-0001")
            process.signal(signal.SIGCONT)
            await ask_until(client, "")
            recovered = await ask_by_header(client)
    assert (known.answer.origin, known.conversation_id) == (Origin.MEMORY, "named-by-a-header")
    assert (new.answer.origin, new.conversation_id) == (Origin.LOCAL_RULE, "new-conversation-0001")
    assert recovered.conversation_id == "named-by-a-header"
    assert sidecar_events(lines) == ["sidecar_silent", "sidecar_recovered"]


async def test_connection_outlives_its_socket_file_and_a_new_file_is_found(
    start_sidecar_process: StartProcess,
) -> None:
    """Removing the file breaks nothing; the next sidecar on that path is connected to."""
    first = start_sidecar_process()
    config = ClientConfig(f"unix://{first.socket_path}", known_timeout_s=30.0, unknown_timeout_s=30.0)
    async with RoutingHintClient(config) as client:
        await ask_until(client, "")
        first.socket_path.unlink()
        unharmed = await ask(client)
        first.signal(signal.SIGKILL)
        missing = await ask_until(client, "socket-missing")
        await asyncio.to_thread(start_sidecar_process)
        found = await ask_until(client, "")
    assert unharmed.answer.origin is Origin.SIDECAR
    assert missing.conversation_id == "conversation-0001"
    assert found.answer.origin is Origin.SIDECAR


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
async def test_full_disk_under_the_log_stops_no_decision(
    socket_folder: Path, sidecar_environment: dict[str, str]
) -> None:
    """The sidecar starts, decides and drains although nothing of its log can be written."""
    path = socket_folder / "s"
    command = [sys.executable, "-m", "sidecar", "serve", "--listen", f"unix://{path}"]
    with open("/dev/full", "w") as full:  # noqa: ASYNC230  no disk behind it
        process = subprocess.Popen(command, stderr=full, env=sidecar_environment)  # noqa: ASYNC220
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
        async with RoutingHintClient(ClientConfig(f"unix://{path}", unknown_timeout_s=30.0)) as client:
            assert (await ask(client)).answer.origin is Origin.SIDECAR
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()


async def test_worker_whose_log_fails_serves_all_the_same(tmp_path: Path) -> None:
    """A warning that can't be written is lost, and the request is not."""

    def fail(*_: object) -> Any:
        raise OSError("no space left on device")

    before = structlog.get_config()
    structlog.configure(processors=[fail])
    try:
        async with RoutingHintClient(ClientConfig(f"unix://{tmp_path}/missing")) as client:
            plan = await ask_until(client, "socket-missing")
            stats = client.stats()
    finally:
        structlog.configure(**before)
    assert plan.conversation_id == "conversation-0001"
    assert "defects" not in stats
