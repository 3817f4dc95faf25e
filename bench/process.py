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

import psutil

START_TIMEOUT_S = 30.0
_POLL_S = 0.005


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
        """Starts the process and waits until it accepts connections."""
        began = time.perf_counter()
        self._process = self._spawn()
        while not await self._accepts():
            if time.perf_counter() - began > START_TIMEOUT_S:
                raise RuntimeError(f"{self._command[2]} does not serve {self.socket_path}")
            await asyncio.sleep(_POLL_S)
        self.start_s = time.perf_counter() - began

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if "ROUTING_HINTS" not in name}
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL, env=environment)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(str(self.socket_path))
        except OSError:
            return False
        writer.close()
        return True

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
