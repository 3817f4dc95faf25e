"""deploy/compose.yaml and the DaemonSet's hand-over of its folder, with real containers."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.container.conftest import IMAGE, PROJECT, ROOT, USER_ID, podman
from tests.docs.runner import Runner, read_commands_of
from tests.docs.transcript import is_as_written, run_command

_WORKER_IMAGE = "localhost/routing-hint-worker:test"
_WAIT_S = 90.0

_Report = dict[str, Any]


@pytest.fixture
def worker_image(tmp_path: Path) -> Iterator[str]:
    """An image of `tests/support/load_worker.py`, which runs as another user than the sidecar's."""
    context = tmp_path / "worker"
    shutil.copytree(ROOT / "examples", context / "examples")
    (context / "load_worker.py").write_bytes((ROOT / "tests/support/load_worker.py").read_bytes())
    (context / "Dockerfile").write_text(
        f"""
        FROM {IMAGE}
        COPY . /source
        ENV PYTHONPATH=/source
        USER 1000:1000
        ENTRYPOINT ["/opt/routing-hint-sidecar/bin/python", "/source/load_worker.py"]
        CMD []
        """
    )
    podman("build", "--quiet", "--pull=never", "--tag", _WORKER_IMAGE, str(context))
    yield _WORKER_IMAGE
    podman("rmi", "--force", _WORKER_IMAGE)


def _read_last_report() -> _Report | None:
    lines = podman("logs", f"{PROJECT}_worker_1").stdout.splitlines()
    return json.loads(lines[-2]) if len(lines) > 1 else None


@pytest.mark.skipif(importlib.util.find_spec("podman_compose") is None, reason="podman-compose is missing")
def test_a_worker_in_the_group_of_the_socket_is_served(docker: Path, worker_image: str) -> None:
    """By the page's commands: another user may connect by the supplementary group, and no request fails."""
    path = os.pathsep.join([str(docker), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SIDECAR_IMAGE": IMAGE}
    up, *calls, down = read_commands_of("docs/deploying.md", Runner.COMPOSE)
    replaced = {"my-worker": worker_image}
    try:
        printed = run_command(up, environment, replaced, ROOT, _WAIT_S)
        deadline = time.monotonic() + _WAIT_S
        while (report := _read_last_report()) is None or report["plans"].get("sidecar", 0) < 100:
            assert time.monotonic() < deadline, (report, printed)
        assert (report["last_error"], report["failures"], report["without_id"]) == ("", 0, 0)
        for command in calls:
            printed = run_command(command, environment, replaced, ROOT)
            assert is_as_written(command.output, printed), printed
    finally:
        run_command(down, environment, replaced, ROOT, _WAIT_S)
    assert podman("volume", "exists", f"{PROJECT}_routing-hints", check=False).returncode == 1


def test_the_init_container_of_the_daemon_set_gives_its_folder_to_the_group_of_the_sidecar() -> None:
    """With the manifest's capabilities a folder of root becomes one where the sidecar can make a socket."""
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
