"""Sidecars for tests: one in the test's own event loop, and the real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, types_pb2
from sidecar.address import TcpAddress, UnixAddress
from sidecar.app import App, start_app
from sidecar.policy.file import parse_policy
from sidecar.policy.holder import PolicyHolder, activate


@dataclass
class SidecarProcess:
    """A running `routing-hint-sidecar serve`."""

    process: subprocess.Popen[str]
    socket_path: Path
    lines: list[str] = field(default_factory=list)
    """What it wrote to stderr; complete after `wait`."""

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "sidecar_started" in line:
                break
        else:
            raise AssertionError(f"the sidecar did not start: {self.lines}")
        self._has_more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def target(self) -> str:
        """The address for a gRPC channel."""
        return f"unix:{self.socket_path}"

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for the end and returns the exit code."""
        code = self.process.wait(timeout=30)
        self._reader.join()
        return code

    def wait_for_line(self, text: str, timeout_s: float = 30.0) -> str:
        """Returns the first line of its log that holds a text; waits for it."""
        with self._has_more:
            found = self._has_more.wait_for(
                lambda: next((line for line in self.lines if text in line), ""), timeout_s
            )
        assert found, f"no {text} in {self.lines}"
        return found

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._has_more:
                self.lines.append(line)
                self._has_more.notify_all()


@dataclass
class SidecarServer:
    """A sidecar in this event loop."""

    app: App
    target: str
    holder: PolicyHolder


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        yield Path(folder)


@pytest.fixture
def sidecar_environment() -> dict[str, str]:
    """This process's environment without settings of a sidecar; a test may add some before it starts one."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("ROUTING_HINTS_", "OTEL_"))
    }


@pytest.fixture
def start_sidecar_process(
    socket_folder: Path, sidecar_environment: dict[str, str]
) -> Iterator[Callable[..., SidecarProcess]]:
    """Starts real processes on a socket of their own; arguments are further ones of `serve`.

    `interpreter` is what Python is to run in place of the module.
    """
    started: list[SidecarProcess] = []

    def start(
        *arguments: str,
        socket_name: str = "sidecar.sock",
        interpreter: tuple[str, ...] = ("-m", "sidecar"),
    ) -> SidecarProcess:
        path = socket_folder / socket_name
        command = [sys.executable, *interpreter, "serve", "--listen", f"unix://{path}", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=sidecar_environment)
        try:
            started.append(SidecarProcess(process, path))
        except BaseException:
            _end(process)
            raise
        return started[-1]

    yield start
    for sidecar in started:
        _end(sidecar.process)


@pytest.fixture
async def start_sidecar(
    socket_folder: Path,
) -> AsyncIterator[Callable[..., Awaitable[SidecarServer]]]:
    """Starts sidecars in this event loop: the policy as YAML, and options of `start_app`."""
    started: list[SidecarServer] = []

    async def start(
        policy: str = "", *, listen: tuple[TcpAddress, ...] = (), **options: Any
    ) -> SidecarServer:
        path = socket_folder / f"sidecar-{len(started)}.sock"
        holder = PolicyHolder(activate(parse_policy(policy)))
        app = await start_app((UnixAddress(path), *listen), holder, **options)
        started.append(SidecarServer(app, f"unix:{path}", holder))
        return started[-1]

    yield start
    for server in started:
        await server.app.stop(drain_timeout_s=0)


@pytest.fixture
async def sidecar(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> SidecarServer:
    """A sidecar in this event loop with the embedded policy."""
    return await start_sidecar()


async def count_decisions(channel: grpc.aio.Channel) -> int:
    """Returns how many requests the sidecar has decided about."""
    stats = await admin_pb2_grpc.RoutingHintsAdminServiceStub(channel).GetStats(admin_pb2.GetStatsRequest())
    return sum(counter.value for counter in stats.counters if counter.name == "decisions")


async def block_in_write(stream: grpc.aio.StreamStreamCall, other: grpc.aio.Channel) -> int:
    """Sends batches on a new stream, unread, until the sidecar can't write its answers.

    The last batch stays unread by the sidecar. `other` must be a connection of its own.

    Returns:
        The number of requests that the sidecar decided about, whose answers are all still to be read.
    """
    identity = types_pb2.Identity(conversation_id="x" * 200)
    request = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL, identity=identity)
    items = [service_pb2.EnrichItem(seq=seq, request=request) for seq in range(100)]
    sent = 0
    while True:
        await stream.write(service_pb2.EnrichStreamRequest(items=items))
        sent += len(items)
        for _ in range(100):
            decided = await count_decisions(other)
            if decided == sent:
                break
        else:
            return decided


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stderr is not None and not process.stderr.closed:
        process.stderr.close()
