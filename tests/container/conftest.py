"""The image under test and the podman that runs it; `make image-test` sets both.

IMAGE_UNDER_TEST  name of the image
PODMAN_FOLDER     where `scripts/podman-here` keeps its storage
ENGINE, BASE_IMAGE, BUILD_FLAGS
                  what `make image` needs on this machine
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("IMAGE_UNDER_TEST", "")
USER_ID = 65_532
PROJECT = "rhcompose"

# podman itself takes seconds on a loaded machine.
pytestmark = pytest.mark.timeout(180)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of this folder where there is no image."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(180))
            if not IMAGE:
                item.add_marker(pytest.mark.skip(reason="no image to test; `make image-test` builds one"))


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs podman and returns what it printed."""
    command = [str(ROOT / "scripts" / "podman-here"), os.environ["PODMAN_FOLDER"], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A folder with a program `docker` that is this podman; its `compose` is podman-compose."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # Not on the PATH, where `podman-here` looks for the real one.
    own_podman = tmp_path / "podman"
    here = f"{ROOT / 'scripts' / 'podman-here'} {Path(os.environ['PODMAN_FOLDER']).resolve()}"
    compose = f"{sys.executable} -m podman_compose --podman-path {own_podman} --project-name {PROJECT}"
    programs = {
        own_podman: f'exec {here} "$@"',
        folder / "docker": f'if [ "$1" = compose ]; then shift; exec {compose} "$@"; fi\nexec {here} "$@"',
    }
    for path, script in programs.items():
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return folder


def inspect(name: str) -> dict[str, Any]:
    """What podman knows of a container or an image."""
    found: dict[str, Any] = json.loads(podman("inspect", name).stdout)[0]
    return found


def find_free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Container:
    """A running container of the image, locked down as the manifests lock it down."""

    name: str
    folder: Path
    """Mounted over /run/routing-hints."""
    port: int

    @property
    def socket_target(self) -> str:
        """The socket for a gRPC channel."""
        return f"unix:{self.folder / 'sidecar.sock'}"

    @property
    def tcp_target(self) -> str:
        """The port for a gRPC channel."""
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that the image's user may write to, with a short path."""
    with tempfile.TemporaryDirectory(prefix="rh") as name:
        folder = Path(name)
        os.chown(folder, USER_ID, USER_ID)
        folder.chmod(0o770)
        yield folder


@pytest.fixture
def start_container(shared_folder: Path) -> Iterator[Callable[..., Container]]:
    """Starts containers; options are podman's, arguments those of the image's command."""
    started: list[str] = []

    def start(options: tuple[str, ...] = (), arguments: tuple[str, ...] = ()) -> Container:
        container = Container(f"rh-{uuid.uuid4().hex[:8]}", shared_folder, find_free_port())
        listen = f"unix:///run/routing-hints/sidecar.sock,tcp://{container.tcp_target}"
        # podman would mount something writable over /tmp, which Kubernetes does not.
        locked_down = ("--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--pids-limit", "100")
        podman(
            *("run", "--detach", "--name", container.name, *locked_down),
            *("--security-opt", "no-new-privileges", "--memory", "256m"),
            *("--volume", f"{shared_folder}:/run/routing-hints", "--env", f"ROUTING_HINTS_LISTEN={listen}"),
            *(*options, IMAGE, *arguments),
        )
        started.append(container.name)
        return container

    yield start
    for name in started:
        podman("rm", "--force", "--time", "0", name)
