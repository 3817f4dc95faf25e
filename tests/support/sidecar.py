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

import grpc.aio
import pytest

from routing_hints.v1 import admin_pb2
from sidecar.app import App, Clocks, start_app
from sidecar.policy.file import parse_policy
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.settings import read_settings
from tests.support.messages import AdminStub, make_batch, make_request
from tests.support.rows import PATIENT_S
from worker_client import ClientConfig, RoutingHintClient

_TURNS_OF_THE_LOOP = 100
_MAX_UNREAD_BATCHES = 10_000
"""Far more than what gRPC's windows hold."""


@dataclass
class SidecarProcess:
    """A running `routing-hint-sidecar serve`.

    Attributes:
        process: the process; its stderr is read by a thread of its own.
        socket_path: the socket that it listens on.
        lines: the lines of its log so far; complete after `wait`.
    """

    process: subprocess.Popen[str]
    socket_path: Path
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._has_more = threading.Condition()
        self._is_complete = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for_line("sidecar_started")
        except BaseException:
            self.kill()
            raise

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

    def kill(self) -> None:
        """Ends it at once, if it still runs."""
        self.process.kill()
        self.wait()

    def wait_for_line(self, text: str, timeout_s: float = 30.0) -> str:
        """Returns the first line of its log that holds a text; waits for it.

        Raises:
            AssertionError: none came in time, or the process ended without one.
        """
        with self._has_more:
            self._has_more.wait_for(lambda: self._find_line(text) or self._is_complete, timeout_s)
            found = self._find_line(text)
        ended = "it has ended" if self._is_complete else f"{timeout_s:g} s later"
        assert found, f"no {text} in the sidecar's log, and {ended}: {self.lines}"
        return found

    def _find_line(self, text: str) -> str:
        return next((line for line in self.lines if text in line), "")

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._has_more:
                    self.lines.append(line)
                    self._has_more.notify_all()
        with self._has_more:
            self._is_complete = True
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
        started.append(SidecarProcess(process, path))
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.kill()


@pytest.fixture
async def start_sidecar(socket_folder: Path) -> AsyncIterator[Callable[..., Awaitable[SidecarServer]]]:
    """Starts sidecars in this event loop, each on a socket of its own.

    Arguments are the policy as YAML, further addresses, clocks, and settings as the command line has them.
    """
    started: list[SidecarServer] = []

    async def start(
        content: str = "",
        *,
        listen: tuple[str, ...] = (),
        clocks: Clocks | None = None,
        **options: str,
    ) -> SidecarServer:
        path = socket_folder / f"sidecar-{len(started)}.sock"
        holder = PolicyHolder(activate(parse_policy(content)))
        settings = read_settings({}, listen=(f"unix://{path}", *listen), **options)
        app = await start_app(settings, holder, clocks=clocks or Clocks())
        started.append(SidecarServer(app, f"unix:{path}", holder))
        return started[-1]

    yield start
    for server in started:
        await server.app.stop(drain_timeout_s=0)


@pytest.fixture
async def sidecar(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> SidecarServer:
    """A sidecar in this event loop with the embedded policy."""
    return await start_sidecar()


def make_client(target: str, **settings: Any) -> RoutingHintClient:
    """Returns a client of the sidecar at a channel's address that no deadline hurries."""
    defaults = {"known_timeout_s": PATIENT_S, "unknown_timeout_s": PATIENT_S}
    return RoutingHintClient(ClientConfig(target.replace("unix:", "unix://"), **{**defaults, **settings}))


async def get_stats(admin: AdminStub) -> admin_pb2.GetStatsResponse:
    """Returns the open streams and the metrics."""
    stats: admin_pb2.GetStatsResponse = await admin.GetStats(admin_pb2.GetStatsRequest())
    return stats


async def read_metric(admin: AdminStub, name: str) -> dict[str, float]:
    """Returns the series of one counter or gauge by their label values, joined by slashes."""
    return {
        "/".join(metric.labels[label] for label in sorted(metric.labels)): metric.value
        for metric in (await get_stats(admin)).metrics
        if metric.name == name
    }


async def sum_metric(admin: AdminStub, name: str) -> float:
    """Returns a counter or gauge over all of its series; 0 where it has none."""
    return sum((await read_metric(admin, name)).values())


async def block_in_write(stream: grpc.aio.StreamStreamCall, admin: AdminStub) -> int:
    """Sends batches on a new stream, unread, until the sidecar can't write its results.

    The last batch stays unread by the sidecar. `admin` must use a connection of its own.

    Returns:
        The number of requests that the sidecar has decided, whose results are all still to be read.
    """
    batch = make_batch(*[make_request("x" * 200)] * 100)
    for number in range(1, _MAX_UNREAD_BATCHES + 1):
        await stream.write(batch)
        sent = number * len(batch.items)
        # Each of these calls is a turn of the loop that would read on if it could.
        for _ in range(_TURNS_OF_THE_LOOP):
            decided = int(await sum_metric(admin, "decisions"))
            if decided == sent:
                break
        else:
            return decided
    raise AssertionError(f"the sidecar has read {sent} requests whose results nobody has read")
