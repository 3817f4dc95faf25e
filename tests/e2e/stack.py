"""Starts what a deployment consists of, each as a process of its own, and reads what it did.

A stack is Dynamo's frontend, workers on fake engines, and a sidecar per worker. All of it listens on
loopback, in the network namespace of the test run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from tests.e2e.model_folder import make_model_folder

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
FRONTEND = "http://127.0.0.1:8000"
START_TIMEOUT_S = 60
REPLY_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = REPLY_TIMEOUT_S) -> T:
    """Returns what `look` finds, as soon as it finds something.

    Raises:
        AssertionError: it found nothing in time.
    """
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.02)
    return found


@dataclass
class Worker:
    """A worker and its sidecar.

    Attributes:
        name: How the stack calls it.
        folder: Where its files are.
        process: The running process.
        sidecar_target: Its sidecar, for a gRPC channel.
    """

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    sidecar_target: str
    _n_read: int = 0

    @property
    def log(self) -> str:
        """Everything that it wrote."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def lines_of(self, event: str) -> list[str]:
        """Returns its log lines of one event of the worker client."""
        return [line for line in self.log.splitlines() if event in line.split()]

    def engine_calls(self) -> list[dict[str, Any]]:
        """Returns the engine calls that ended, oldest first; see `examples.fake_engine.host`."""
        path = self.folder / f"{self.name}.calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def take_new_calls(self) -> list[dict[str, Any]]:
        """Returns the calls of requests since the last time; probes of the health check are left out."""
        calls = self.engine_calls()
        new, self._n_read = calls[self._n_read :], len(calls)
        return [call for call in new if call["prompt_tokens"] > 1]

    def get_record(self, request_id: str) -> Any:
        """Returns the GetDecisionResponse of a request, once its finish report has come."""

        def look() -> Any:
            try:
                found = admin.GetDecision(admin_pb2.GetDecisionRequest(request_id=request_id))
            except grpc.RpcError:
                return None
            return found if found.HasField("finish") else None

        with grpc.insecure_channel(self.sidecar_target) as channel:
            admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
            return wait_for(look, f"the finish report of {self.name} about {request_id}")

    def has_record(self, request_id: str) -> bool:
        """Returns whether its sidecar has decided about a request."""
        with grpc.insecure_channel(self.sidecar_target) as channel:
            admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
            try:
                admin.GetDecision(admin_pb2.GetDecisionRequest(request_id=request_id))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                return False
            return True


@dataclass
class Stack:
    """A running deployment; `stop` ends every process of it.

    Attributes:
        folder: Its files; sockets are in it, so its path is short.
        workers: By name.
    """

    folder: Path
    interface: str = "127.0.0.1"
    workers: dict[str, Worker] = field(default_factory=dict)
    _started: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model_path = make_model_folder(self.folder / "model")
        (self.folder / "home").mkdir()

    def start_frontend(self, *arguments: str) -> None:
        """Starts Dynamo's frontend; arguments are further ones of its."""
        command = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "8000"]
        self._start("frontend", [sys.executable, *command, "--enable-anthropic-api", *arguments], {})

    def start_worker(
        self,
        name: str,
        script: str,
        *arguments: str,
        release: str,
        host_options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        policy: str = "",
    ) -> Worker:
        """Starts a worker on a fake engine, and its sidecar.

        Args:
            name: How to call it.
            script: What to run, of this repository.
            *arguments: Its arguments.
            release: The fake engine's release.
            host_options: Further options of the fake engine.
            environment: Added to the worker's environment.
            policy: The sidecar's policy as YAML; empty for the embedded one.
        """
        socket = self.folder / f"{name}.sock"
        serve = [os.environ["E2E_SIDECAR"], "serve", "--listen", f"unix://{socket}"]
        if policy:
            path = self.folder / f"{name}.policy.yaml"
            path.write_text(policy)
            serve += ["--policy", str(path)]
        self._start(f"sidecar-{name}", serve, {})
        # Otherwise the worker's first requests would be decided by its own rule.
        wait_for(lambda: socket.exists() or None, f"the sidecar of {name}", START_TIMEOUT_S)
        host = ["-m", "examples.fake_engine.host", "--release", release, *host_options]
        record = ["--record", str(self.folder / f"{name}.calls")]
        command = [sys.executable, *host, *record, str(ROOT / script), *arguments]
        process = self._start(
            name, command, {"ROUTING_HINTS_TARGET": f"unix://{socket}", **(environment or {})}
        )
        self.workers[name] = Worker(name, self.folder, process, f"unix:{socket}")
        return self.workers[name]

    def _start(
        self, name: str, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self._environment() | dict(environment)
            )
        self._started.append((name, process))
        return process

    def _environment(self) -> dict[str, str]:
        foreign = ("DYN_", "ROUTING_HINTS_", "OTEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return kept | {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.folder / "kv"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": self.interface,
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(self.folder / "home"),
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
            # Tested here is who decides, on a machine that may be busy, and not how fast.
            "ROUTING_HINTS_KNOWN_TIMEOUT_MS": "10000",
            "ROUTING_HINTS_UNKNOWN_TIMEOUT_MS": "10000",
        }

    def await_running(self) -> None:
        """Raises AssertionError with the end of the log if a process has died."""
        for name, process in self._started:
            if process.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace")
                raise AssertionError(f"{name} ended with {process.returncode}:\n{log[-3000:]}")

    def stop(self) -> None:
        """Ends everything; the frontend at once, since it would wait for requests that nobody sends."""
        for name, process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if name == "frontend" else signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for _, process in self._started:
            _end_by(process, deadline)


def _end_by(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
