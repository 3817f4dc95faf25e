"""deploy/compose.yaml and the DaemonSet's hand-over of its folder, with real containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.container.conftest import IMAGE, ROOT, USER_ID, podman

_PROJECT = "rhcompose"
_WAIT_S = 90.0
COMPOSE = shutil.which("podman-compose", path=str(Path(sys.executable).parent))

_Report = dict[str, Any]


def _compose(*arguments: str, override: Path) -> None:
    wrapper = override.parent / "podman"
    here = ROOT / "scripts" / "podman-here"
    wrapper.write_text(f'#!/bin/sh\nexec {here} {Path(os.environ["PODMAN_FOLDER"]).resolve()} "$@"\n')
    wrapper.chmod(0o755)
    files = ("-f", str(ROOT / "deploy" / "compose.yaml"), "-f", str(override))
    done = subprocess.run(
        [str(COMPOSE), "--podman-path", str(wrapper), "-p", _PROJECT, *files, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "WORKER_IMAGE": IMAGE, "SIDECAR_IMAGE": IMAGE},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[None]:
    """Both services; the worker is `tests/fixtures/load_worker.py`, as another user than the sidecar's."""
    with tempfile.TemporaryDirectory(prefix="rh") as name:
        source = Path(name)
        source.chmod(0o755)
        shutil.copytree(ROOT / "examples", source / "examples")
        (source / "load_worker.py").write_bytes((ROOT / "tests/fixtures/load_worker.py").read_bytes())
        worker = {
            "entrypoint": ["/opt/routing-hint-sidecar/bin/python", "/source/load_worker.py"],
            "command": [],
            "user": "1000:1000",
            "environment": {"PYTHONPATH": "/source"},
            "volumes": [f"{source}:/source:ro"],
        }
        override = tmp_path / "override.yaml"
        override.write_text(yaml.safe_dump({"services": {"worker": worker}}))
        try:
            _compose("up", "--detach", override=override)
            yield
        finally:
            _compose("down", "--volumes", override=override)


def _read_last_report() -> _Report | None:
    lines = podman("logs", f"{_PROJECT}_worker_1").stdout.splitlines()
    return json.loads(lines[-2]) if len(lines) > 1 else None


@pytest.mark.skipif(COMPOSE is None, reason="podman-compose is not installed")
@pytest.mark.usefixtures("composed")
def test_a_worker_of_the_group_is_answered() -> None:
    """Another user, let in by the supplementary group; no request fails."""
    deadline = time.monotonic() + _WAIT_S
    while (report := _read_last_report()) is None or report["plans"].get("sidecar", 0) < 100:
        assert time.monotonic() < deadline, report
    assert (report["failures"], report["without_id"]) == (0, 0)


def test_the_daemon_set_hands_its_folder_over() -> None:
    """With the manifest's capabilities root's folder becomes one where the sidecar can make a socket."""
    spec = yaml.safe_load((ROOT / "deploy/kubernetes/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    capabilities = [
        argument
        for name in init["securityContext"]["capabilities"]["add"]
        for argument in ("--cap-add", name)
    ]
    program, *arguments = init["command"]
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        locked_down = ("--rm", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all")
        mount = ("--volume", f"{folder}:/run/routing-hints")
        as_root = ("--user", "0:0", "--entrypoint", program)
        podman("run", *locked_down, *capabilities, *mount, *as_root, IMAGE, *arguments)
        found = Path(folder).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (0, USER_ID, 0o2770)
        bind = (
            "import socket; socket.socket(socket.AF_UNIX).bind('/run/routing-hints/s');"
            "import os; print(os.stat('/run/routing-hints/s').st_gid)"
        )
        done = podman("run", *locked_down, *mount, "--entrypoint", "python3", IMAGE, "-c", bind)
        assert done.stdout.split() == [str(USER_ID)]
