"""A pod of two containers, sidecar and worker, that share the socket by an emptyDir."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.container.conftest import IMAGE, ROOT, inspect, podman

Report = dict[str, Any]
_WAIT_S = 90.0


class PodHarness:
    """A running pod; its worker is `tests/support/load_worker.py` under load."""

    def __init__(self, name: str) -> None:
        self.name = name

    def report(self) -> Report | None:
        """What the worker reported last."""
        lines = podman("logs", f"{self.name}-worker").stdout.splitlines()
        # The last line may be half written.
        return json.loads(lines[-2]) if len(lines) > 1 else None

    def await_report(self, is_wanted: Callable[[Report], bool]) -> Report:
        """Waits until the worker reports what is wanted."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            report = self.report()
            if report is not None and is_wanted(report):
                return report
        log = podman("logs", f"{self.name}-sidecar").stderr
        pytest.fail(f"after {_WAIT_S:g} s the worker reports {self.report()}; the sidecar's log: {log}")

    def await_restart(self) -> None:
        """Waits until the sidecar was brought back at least once."""
        deadline = time.monotonic() + _WAIT_S
        while not self.count_restarts():
            assert time.monotonic() < deadline, f"the sidecar was not brought back in {_WAIT_S:g} s"

    def kill_sidecar(self) -> None:
        """Kills the sidecar's process; the pod's restart policy brings it back."""
        os.kill(inspect(f"{self.name}-sidecar")["State"]["Pid"], signal.SIGKILL)

    def count_restarts(self) -> int:
        """How often the sidecar was brought back."""
        restarts: int = inspect(f"{self.name}-sidecar")["RestartCount"]
        return restarts


@pytest.fixture
def worker_source() -> Iterator[Path]:
    """The worker's program and its engine, and nothing that the image's own packages should bring."""
    with tempfile.TemporaryDirectory(prefix="rh") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "load_worker.py").write_bytes((ROOT / "tests/support/load_worker.py").read_bytes())
        yield folder


@pytest.fixture
def start_pod(tmp_path: Path, worker_source: Path) -> Iterator[Callable[..., PodHarness]]:
    """Starts pods; the argument is the command line of the sidecar."""
    started: list[Path] = []

    def start(*arguments: str) -> PodHarness:
        # This podman names an emptyDir's volume by its name alone, so it must differ from pod to pod.
        name = f"rh-{uuid.uuid4().hex[:8]}"
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(_describe(name, list(arguments), worker_source)))
        started.append(path)
        podman("play", "kube", "--quiet", "--network", "none", str(path))
        return PodHarness(name)

    yield start
    for path in started:
        podman("play", "kube", "--down", str(path), check=False)


def _describe(name: str, arguments: list[str], source_folder: Path) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    socket = {"name": f"{name}-socket", "mountPath": "/run/routing-hints"}
    source = {"name": "source", "mountPath": "/source", "readOnly": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Always",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65_532, "fsGroup": 65_532},
            "containers": [
                {
                    "name": "sidecar",
                    "image": IMAGE,
                    "args": arguments,
                    "securityContext": security,
                    "volumeMounts": [socket],
                },
                {
                    "name": "worker",
                    "image": IMAGE,
                    "command": ["/opt/routing-hint-sidecar/bin/python", "/source/load_worker.py"],
                    "env": [{"name": "PYTHONPATH", "value": "/source"}],
                    "securityContext": security,
                    "volumeMounts": [socket, source],
                },
            ],
            "volumes": [
                {"name": socket["name"], "emptyDir": {}},
                {"name": "source", "hostPath": {"path": str(source_folder), "type": "Directory"}},
            ],
        },
    }


def test_a_pod_survives_the_kill_of_its_sidecar(start_pod: Callable[..., PodHarness]) -> None:
    """No request fails, every conversation stays, and the sidecar that comes back decides again."""
    pod = start_pod("serve")
    before = pod.await_report(lambda report: report["plans"].get("sidecar", 0) > 200)
    pod.kill_sidecar()
    during = pod.await_report(lambda report: report["plans"].get("memory", 0) > 50)
    decided = during["plans"]["sidecar"]
    after = pod.await_report(lambda report: report["plans"]["sidecar"] > decided + 200)
    assert pod.count_restarts() == 1
    assert after["requests"] > before["requests"]
    assert (after["last_error"], after["failures"]) == ("", 0)
    assert (after["moved"], after["without_id"]) == (0, 0)


def test_a_worker_starts_although_its_sidecar_exits_at_once(start_pod: Callable[..., PodHarness]) -> None:
    """Its requests go out with the id that the client may resolve alone, and none fails."""
    pod = start_pod("serve", "--policy", "/absent.yaml")
    pod.await_restart()
    report = pod.await_report(lambda report: report["plans"].get("local-rule", 0) > 200)
    assert "sidecar" not in report["plans"]
    assert (report["last_error"], report["failures"]) == ("", 0)
    assert (report["moved"], report["without_id"]) == (0, 0)
