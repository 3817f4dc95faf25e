"""The remaining commands of docs/deploying.md, and `make run` of the README."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.docs.transcript import is_as_written, read_commands, run_command
from tests.fixtures.sidecar import SidecarProcess

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploying.md"
_METRICS = "127.0.0.1:9464"
# One program of these is in each command that is no container's.
_PROGRAMS = ("kubernetes-validate", "promtool", "curl")

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.mark.parametrize("program", _PROGRAMS)
def test_commands_print_what_the_page_says(
    program: str, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Every command of the page that begins with this program, from the folder of the checkout."""
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is missing")
    sidecar = start_sidecar_process("--metrics-listen", "127.0.0.1:0")
    replaced = {_METRICS: json.loads(sidecar.lines[-1])["metrics_listen"]}
    commands = [command for command in read_commands(PAGE) if command.text.startswith(f"{program} ")]
    assert commands
    for command in commands:
        printed = run_command(command, {**os.environ, "PATH": PATH}, replaced, folder=ROOT)
        assert is_as_written(command.output, printed), f"{PAGE.name}:{command.line}: {printed}"


def test_no_command_is_run_by_nobody() -> None:
    """What is neither run here nor in a container nor by make would be untested."""
    runners = {command.text.split()[0] for command in read_commands(PAGE)}
    assert runners == {*_PROGRAMS, "docker", "grpcurl", "make"}


@pytest.mark.parametrize("page", ["README.md", "docs/deploying.md"])
def test_make_targets_of_the_pages_exist_and_are_run(page: str) -> None:
    """Each is a target; `.ci/run` runs it, or it is `run` and `image`, which tests run."""
    makefile = ROOT / "Makefile"
    if not makefile.exists():
        pytest.skip("the checkout is not here")
    named = set(re.findall(r"\bmake ([a-z0-9-]+)", (ROOT / page).read_text()))
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile.read_text(), re.M))
    assert named - targets == set()
    run_by_ci = set(re.findall(r"\bmake ([a-z0-9-]+)", (ROOT / ".ci" / "run").read_text()))
    assert named - run_by_ci <= {"run", "image", "help"}


@pytest.mark.skipif(
    not (ROOT / ".venv" / ".installed").exists(), reason="needs the environment of `make setup`"
)
def test_make_run_serves(tmp_path: Path) -> None:
    """`make run` prints what to try and serves on the socket and on TCP until it is interrupted."""
    with subprocess.Popen(
        ["make", "run", f"RUN_DIR={tmp_path}", "PORT=0"],  # noqa: S607, as the README has it
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        started = next(json.loads(line) for line in process.stderr if "sidecar_started" in line)
        with grpc.insecure_channel(started["listen"][1].removeprefix("tcp://")) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
