"""Replacing the sidecar under a worker's load: real processes, a real client, an engine stand-in."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar import SidecarProcess

ROOT = Path(__file__).parents[2]
Start = Callable[..., SidecarProcess]
Report = dict[str, Any]


class Worker:
    """A running `tests/support/load_worker.py`."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, str(ROOT / "tests" / "fixtures" / "load_worker.py")]
        search = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environment, "PYTHONPATH": search},
        )
        self._reports: queue.Queue[Report] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def await_report(self, is_wanted: Callable[[Report], bool]) -> Report:
        """Waits until the worker reports what is wanted."""
        while True:
            report = self._reports.get(timeout=30)
            if is_wanted(report):
                return report

    def await_answers(self, origin: str, more: int) -> Report:
        """Waits for so many further plans of one origin."""
        so_far = self.await_report(lambda _: True)["plans"].get(origin, 0)
        return self.await_report(lambda report: report["plans"].get(origin, 0) >= so_far + more)

    def stop(self) -> Report:
        """Stops it; returns its last report."""
        self._process.terminate()
        assert self._process.wait(timeout=30) == 0
        self._reader.join()
        *_, last = self._reports.queue
        report: Report = last
        return report

    def kill(self) -> None:
        """Ends it at once, if it still runs."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._reports.put(json.loads(line))


@pytest.fixture
def start_worker(socket_folder: Path, sidecar_environment: dict[str, str]) -> Iterator[Callable[..., Worker]]:
    """Starts workers of the sidecars of `start_sidecar_process`; variables are those of the client."""
    started: list[Worker] = []

    def start(**variables: str) -> Worker:
        target = {"ROUTING_HINTS_TARGET": f"unix://{socket_folder}/sidecar.sock"}
        started.append(Worker({**sidecar_environment, **target, **variables}))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def test_a_rolling_replacement_is_not_felt(
    start_sidecar_process: Start, start_worker: Callable[..., Worker]
) -> None:
    """Three sidecars in turn, each drained by SIGTERM: no request fails, and every conversation stays."""
    sidecar = start_sidecar_process()
    worker = start_worker()
    for _ in range(2):
        worker.await_answers("sidecar", 200)
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0
        worker.await_answers("memory", 50)
        sidecar = start_sidecar_process()
    worker.await_answers("sidecar", 200)
    report = worker.stop()
    assert (report["failures"], report["moved"], report["without_id"]) == (0, 0, 0)


def test_a_killed_and_a_stopped_sidecar_are_not_felt(
    start_sidecar_process: Start, start_worker: Callable[..., Worker]
) -> None:
    """Neither `kill -9` nor a process that hangs fails a request or moves a conversation."""
    sidecar = start_sidecar_process()
    worker = start_worker()
    worker.await_answers("sidecar", 200)
    sidecar.signal(signal.SIGSTOP)
    worker.await_answers("memory", 50)
    sidecar.signal(signal.SIGCONT)
    worker.await_answers("sidecar", 200)
    sidecar.signal(signal.SIGKILL)
    sidecar.wait()
    worker.await_answers("memory", 50)
    report = worker.stop()
    assert (report["failures"], report["moved"], report["without_id"]) == (0, 0, 0)


def test_the_load_shows_requests_without_id(
    start_sidecar_process: Start, start_worker: Callable[..., Worker]
) -> None:
    """The control: with affinity off the same worker reports that every request lacks the id."""
    start_sidecar_process()
    worker = start_worker(ROUTING_HINTS_AFFINITY="off")
    worker.await_answers("forwarded", 100)
    report = worker.stop()
    assert report["without_id"] > 90
    assert report["failures"] == 0


@pytest.mark.parametrize("off", ["mode: off", "rollout_percent: 0"])
def test_off_needs_no_restart(
    start_sidecar_process: Start, start_worker: Callable[..., Worker], tmp_path: Path, off: str
) -> None:
    """A worker that had ids attached sends none once the policy file says off; nothing is restarted."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("operational: {mode: on}")
    start_sidecar_process("--policy", str(policy))
    worker = start_worker()
    before = worker.await_answers("sidecar", 200)
    assert before["without_id"] == 0
    policy.write_text(f"operational: {{{off}}}")
    after = worker.await_report(lambda report: report["without_id"] > 100)
    assert after["failures"] == 0
