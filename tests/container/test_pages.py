"""The container commands of the pages, by the image under test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.container.conftest import IMAGE, ROOT, find_free_port, podman
from tests.docs.transcript import Command, is_as_written, read_commands, run_command

_NAME = "hints"
_IMAGE = "localhost/routing-hint-sidecar:0.1.0"
_TCP = "127.0.0.1:50051"
_READY_TIMEOUT_S = 60.0
PATH = os.pathsep.join([str(ROOT / ".tools"), str(Path(sys.executable).parent), os.environ["PATH"]])

needs_grpcurl = pytest.mark.skipif(shutil.which("grpcurl", path=PATH) is None, reason="grpcurl is missing")


@pytest.fixture
def port() -> Iterator[int]:
    """The port of the container, which is gone afterwards."""
    yield find_free_port()
    podman("rm", "--force", "--ignore", "--time", "0", _NAME)


def _read_container_commands(page: str) -> list[Command]:
    commands = read_commands(ROOT / page)
    first = next(i for i, command in enumerate(commands) if command.text.startswith("docker run"))
    last = next(i for i, command in enumerate(commands) if command.text.startswith("docker stop"))
    return commands[first : last + 1]


@needs_grpcurl
@pytest.mark.parametrize("page", ["README.md", "docs/deploying.md"])
def test_container_commands_print_what_the_page_says(page: str, port: int) -> None:
    """From `docker run` to `docker stop`, with podman in docker's place."""
    here = f"{ROOT / 'scripts' / 'podman-here'} {os.environ['PODMAN_FOLDER']}"
    target = f"127.0.0.1:{port}"
    replaced = {_TCP: target, _IMAGE: IMAGE, "docker ": f"{here} "}
    for command in _read_container_commands(page):
        printed = run_command(command, {**os.environ, "PATH": PATH}, replaced)
        assert is_as_written(command.output, printed), f"{page}:{command.line}: {printed}"
        if command.text.startswith("docker run"):
            with grpc.insecure_channel(target) as channel:
                grpc.channel_ready_future(channel).result(timeout=_READY_TIMEOUT_S)
    # podman removes a stopped container a moment later.
    podman("wait", "--condition", "removing", "--condition", "stopped", _NAME, check=False)
