"""The sidecar processes of a simulation: one per worker, kept over many runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

from bench.affinity.clock import SharedClock

_STOP_TIMEOUT_S = 30.0


class SidecarFleet:
    """Starts sidecars on demand, one per worker and policy, and ends them together.

    Attributes:
        clock: the time of all of them.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rh")
        self._path = Path(self._folder.name)
        self._processes: dict[Path, subprocess.Popen[str]] = {}
        self.clock = SharedClock(self._path / "clock")

    def __enter__(self) -> SidecarFleet:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, workers: Sequence[str], policy: str) -> dict[str, str]:
        """Returns the target of each worker's sidecar under a policy (YAML).

        Raises:
            RuntimeError: a sidecar does not start.
        """
        name = blake2b(policy.encode(), digest_size=6).hexdigest()
        sockets = {worker: self._path / f"{worker}-{name}.sock" for worker in workers}
        policy_path = self._path / f"{name}.yaml"
        policy_path.write_text(policy, encoding="utf-8")
        missing = [socket for socket in sockets.values() if socket not in self._processes]
        for socket in missing:
            command = [sys.executable, "-m", "bench.affinity.virtual_sidecar", str(self._path / "clock")]
            settings = {"ROUTING_HINTS_LISTEN": f"unix://{socket}", "ROUTING_HINTS_POLICY": str(policy_path)}
            self._processes[socket] = subprocess.Popen(
                command, stderr=subprocess.PIPE, text=True, env=_make_environment() | settings
            )
        for socket in missing:
            _await_start(self._processes[socket])
        return {worker: f"unix://{socket}" for worker, socket in sockets.items()}

    def close(self) -> None:
        """Ends every sidecar."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.communicate(timeout=_STOP_TIMEOUT_S)
        self._processes.clear()
        self._folder.cleanup()


def _make_environment() -> dict[str, str]:
    """Returns this process's environment without settings of a sidecar."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ROUTING_HINTS_")}


def _await_start(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None  # noqa: S101
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "sidecar_started" in line:
            return
    raise RuntimeError(f"a sidecar did not start: {''.join(lines)}")
