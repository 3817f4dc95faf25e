"""Replacing the sidecar under a worker's load: real processes, a real client, a fake engine."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecar import SidecarProcess

ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 30.0
Start = Callable[..., SidecarProcess]
Report = dict[str, Any]


class WorkerHarness:
    """A running `tests/support/load_worker.py`."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, str(ROOT / "tests" / "support" / "load_worker.py")]
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

    def await_report(self, is_wanted: Callable[[Report], bool], what: str = "a report") -> Report:
        """Waits until the worker reports what is wanted."""
        report: Report = {}
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                report = self._reports.get(timeout=_TIMEOUT_S)
            except queue.Empty:
                break
            if is_wanted(report):
                return report
        raise AssertionError(f"waited {_TIMEOUT_S:g} s for {what}; the worker reports {report}")

    def await_plans(self, origin: str, more: int) -> Report:
        """Waits for so many further plans of one origin."""
        wanted = self.await_report(lambda _: True)["plans"].get(origin, 0) + more
        return self.await_report(
            lambda report: report["plans"].get(origin, 0) >= wanted, f"{wanted} plans of origin {origin}"
        )

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
def start_worker(
    socket_folder: Path, sidecar_environment: dict[str, str]
) -> Iterator[Callable[..., WorkerHarness]]:
    """Starts workers of the sidecars of `start_sidecar_process`; variables are those of the client."""
    started: list[WorkerHarness] = []

    def start(**variables: str) -> WorkerHarness:
        target = {"ROUTING_HINTS_TARGET": f"unix://{socket_folder}/sidecar.sock"}
        started.append(WorkerHarness({**sidecar_environment, **target, **variables}))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def _write_reuse(folder: Path, max_age_s: int) -> str:
    path = folder / "policy.yaml"
    path.write_text(f"operational: {{reuse: {{max_age_s: {max_age_s}}}}}")
    return str(path)


def _check_unaffected(report: Report) -> None:
    assert (report["last_error"], report["moved"], report["without_id"]) == ("", 0, 0)
    assert report["failures"] == 0


_WITH_AND_WITHOUT_REUSE = pytest.mark.parametrize(
    ("max_age_s", "decides", "decides_while_it_hangs"),
    [(0, "sidecar", "memory"), (1_800, "reused", "reused")],
    ids=["without reuse", "with reuse"],
)
"""While the stream is up, a reused decision waits for no response; without a stream, memory decides."""


@_WITH_AND_WITHOUT_REUSE
def test_a_rolling_replacement_fails_no_request_and_moves_no_conversation(
    start_sidecar_process: Start,
    start_worker: Callable[..., WorkerHarness],
    tmp_path: Path,
    max_age_s: int,
    decides: str,
    decides_while_it_hangs: str,
) -> None:
    """Three sidecars in turn, each drained by SIGTERM; a new stream begins without reuse."""
    policy = _write_reuse(tmp_path, max_age_s)
    sidecar = start_sidecar_process("--policy", policy)
    worker = start_worker()
    for _ in range(2):
        worker.await_plans(decides, 200)
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0
        worker.await_plans("memory", 50)
        sidecar = start_sidecar_process("--policy", policy)
    worker.await_plans(decides, 200)
    _check_unaffected(worker.stop())


@_WITH_AND_WITHOUT_REUSE
def test_a_killed_and_a_hanging_sidecar_fail_no_request_and_move_no_conversation(
    start_sidecar_process: Start,
    start_worker: Callable[..., WorkerHarness],
    tmp_path: Path,
    max_age_s: int,
    decides: str,
    decides_while_it_hangs: str,
) -> None:
    sidecar = start_sidecar_process("--policy", _write_reuse(tmp_path, max_age_s))
    worker = start_worker()
    worker.await_plans(decides, 200)
    sidecar.signal(signal.SIGSTOP)
    worker.await_plans(decides_while_it_hangs, 50)
    sidecar.signal(signal.SIGCONT)
    worker.await_plans(decides, 200)
    sidecar.signal(signal.SIGKILL)
    sidecar.wait()
    worker.await_plans("memory", 50)
    _check_unaffected(worker.stop())


def test_the_worker_reports_requests_without_an_id(
    start_sidecar_process: Start, start_worker: Callable[..., WorkerHarness]
) -> None:
    """The control: with affinity off every request lacks it."""
    start_sidecar_process()
    worker = start_worker(ROUTING_HINTS_AFFINITY="off")
    worker.await_plans("forwarded", 100)
    report = worker.stop()
    assert report["without_id"] > 90
    assert report["failures"] == 0


@pytest.mark.parametrize(("max_age_s", "decides"), [(0, "sidecar"), (1_800, "reused")])
@pytest.mark.parametrize("off", ["mode: off", "rollout_percent: 0"])
def test_switching_affinity_off_in_the_policy_needs_no_restart(
    start_sidecar_process: Start,
    start_worker: Callable[..., WorkerHarness],
    tmp_path: Path,
    off: str,
    max_age_s: int,
    decides: str,
) -> None:
    policy = Path(_write_reuse(tmp_path, max_age_s))
    start_sidecar_process("--policy", str(policy))
    worker = start_worker()
    before = worker.await_plans(decides, 200)
    assert before["without_id"] == 0
    policy.write_text(f"operational: {{{off}}}")
    after = worker.await_report(lambda report: report["without_id"] > 100, "requests without an id")
    assert after["failures"] == 0
