"""Server processes under measurement."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import psutil

START_TIMEOUT_S = 30.0


class ServerProcess:
    """A Python process that serves one Unix socket.

    Attributes:
        socket_path: where it serves.
        start_s: seconds from its start to its first accepted connection.
    """

    def __init__(self, module: str, arguments: Sequence[str], socket_path: Path) -> None:
        self.socket_path = socket_path
        self.start_s = 0.0
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """The address for a gRPC channel."""
        return f"unix:{self.socket_path}"

    async def __aenter__(self) -> ServerProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def start(self) -> None:
        """Starts the process and waits until it accepts calls."""
        environment = {name: value for name, value in os.environ.items() if "ROUTING_HINTS" not in name}
        began = time.perf_counter()
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, env=environment)
        async with grpc.aio.insecure_channel(
            self.target, options=(("grpc.initial_reconnect_backoff_ms", 10), ("grpc.max_reconnect_backoff_ms", 10))
        ) as channel:
            await asyncio.wait_for(channel.channel_ready(), START_TIMEOUT_S)
        self.start_s = time.perf_counter() - began

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once, also a stopped one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_s(self) -> float:
        """Returns the processor seconds that it has used, all threads."""
        times = self._inspect().cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Returns its resident memory."""
        return int(self._inspect().memory_info().rss)

    def open_files(self) -> int:
        """Returns the number of its file descriptors."""
        return int(self._inspect().num_fds())

    def _inspect(self) -> psutil.Process:
        if self._process is None:
            raise RuntimeError("the process is not running")
        return psutil.Process(self._process.pid)


def start_sidecar(folder: Path, *arguments: str, name: str = "sidecar.sock") -> ServerProcess:
    """Returns the real sidecar, not yet started, on a socket in `folder`."""
    path = folder / name
    return ServerProcess("sidecar", ["serve", "--listen", f"unix://{path}", *arguments], path)
