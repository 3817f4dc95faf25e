"""The container commands of the pages, in a fresh clone, with podman in docker's place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.conftest import IMAGE, ROOT, find_free_port, podman
from tests.docs.runner import Runner, read_commands_of
from tests.docs.transcript import is_as_written, run_command

_NAME = "hints"
_TCP = "127.0.0.1:50051"
_TRACED_IMAGE = "localhost/routing-hint-sidecar:traces"
_BUILD_TIMEOUT_S = 170.0
PATH = os.pathsep.join([str(ROOT / ".tools"), str(Path(sys.executable).parent), os.environ["PATH"]])

needs_grpcurl = pytest.mark.skipif(shutil.which("grpcurl", path=PATH) is None, reason="grpcurl is missing")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit and nothing that was built, as a newcomer has it."""
    folder = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)  # noqa: S607, the system's git
    return folder


@pytest.fixture
def environment(docker: Path) -> dict[str, str]:
    """Has `docker`, and what `make image` needs here: engine, base image, flags, as image-test chose them."""
    return {**os.environ, "PATH": os.pathsep.join([str(docker), PATH])}


@pytest.fixture
def port() -> Iterator[int]:
    """The port of the container, which is gone afterwards."""
    yield find_free_port()
    podman("rm", "--force", "--ignore", "--time", "0", _NAME)


@needs_grpcurl
@pytest.mark.parametrize("page", ["README.md", "docs/deploying.md"])
def test_a_newcomer_gets_a_container_that_serves(
    page: str, clone: Path, environment: dict[str, str], port: int
) -> None:
    """From `make image` to `docker stop`, by the page alone."""
    replaced = {_TCP: f"127.0.0.1:{port}"}
    commands = read_commands_of(page, Runner.CONTAINER, clone)
    assert commands[0].text == "make image"
    assert commands[-1].text == f"docker stop {_NAME}"
    for command in commands:
        printed = run_command(command, environment, replaced, clone, _BUILD_TIMEOUT_S)
        assert is_as_written(command.output, printed), f"{page}:{command.line}: {printed}"
    # podman removes a stopped container a moment later.
    podman("wait", "--condition", "removing", "--condition", "stopped", _NAME, check=False)


def test_an_image_for_traces_makes_spans(clone: Path, environment: dict[str, str]) -> None:
    """By the page's command: the sidecar in it does not log that OpenTelemetry is missing."""
    (command,) = read_commands_of("docs/deploying.md", Runner.TRACES, clone)
    printed = run_command(command, {**environment, "IMAGE": _TRACED_IMAGE}, {}, clone, _BUILD_TIMEOUT_S)
    logs = {image: _read_start_of_log(image) for image in (_TRACED_IMAGE, IMAGE)}
    assert "tracing_unavailable" not in logs[_TRACED_IMAGE], printed
    assert "sidecar_started" in logs[_TRACED_IMAGE], printed
    # The control: the one in the usual image does.
    assert "tracing_unavailable" in logs[IMAGE]


def _read_start_of_log(image: str) -> str:
    """What a sidecar that is asked for spans logs until it serves."""
    wanted = ("--env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9")
    # No collector is there; the sidecar starts and stops all the same.
    podman("run", "--detach", "--name", _NAME, "--read-only", "--cap-drop", "all", *wanted, image)
    try:
        podman("exec", _NAME, "sh", "-c", "until routing-hint-sidecar probe; do sleep 0.2; done")
        return podman("logs", _NAME).stderr
    finally:
        podman("rm", "--force", "--time", "0", _NAME)
