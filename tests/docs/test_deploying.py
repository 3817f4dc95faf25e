"""The commands of docs/deploying.md that need no container, and `make run` and `make demo` of the README."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.docs.runner import ROOT, Runner, read_commands_of
from tests.docs.transcript import Command, is_as_written, run_command, serve
from tests.support.sidecar import SidecarProcess

_PAGE = "docs/deploying.md"
_METRICS = "127.0.0.1:9464"
_PROGRAMS = ("kubernetes-validate", "promtool", "curl")

PATH = os.pathsep.join([str(ROOT / ".tools"), str(Path(sys.executable).parent), os.environ["PATH"]])

needs_setup = pytest.mark.skipif(
    not (ROOT / ".venv" / ".installed").exists(), reason="needs the environment of `make setup`"
)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_commands_print_what_the_page_says(
    program: str, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Every command of the page that begins with this program, from the folder of the checkout."""
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is missing")
    sidecar = start_sidecar_process("--metrics-listen", "127.0.0.1:0")
    replaced = {_METRICS: json.loads(sidecar.lines[-1])["metrics_listen"]}
    commands = [command for command in _read_checkout_commands() if command.text.startswith(f"{program} ")]
    assert commands
    for command in commands:
        printed = run_command(command, {**os.environ, "PATH": PATH}, replaced, ROOT)
        assert is_as_written(command.output, printed), f"{_PAGE}:{command.line}: {printed}"


def test_each_command_is_of_these_programs() -> None:
    """Another program would be run by nobody."""
    assert {command.text.split()[0] for command in _read_checkout_commands()} == set(_PROGRAMS)


def _read_checkout_commands() -> list[Command]:
    return read_commands_of(_PAGE, Runner.CHECKOUT)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with what the page's TLS commands name; one authority signs server and client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    for name, issued in (("tls", authority.issue_cert("localhost")), ("client", authority.issue_cert("x"))):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        (tmp_path / f"{name}.crt").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return tmp_path


def test_tls_commands_print_what_the_page_says(
    certificates: Path, sidecar_environment: dict[str, str]
) -> None:
    """Refused without TLS; with it the page's own sidecar answers who shows a certificate, and only those."""
    if shutil.which("grpcurl", path=PATH) is None:
        pytest.skip("grpcurl is missing")
    refused, start, *asking = read_commands_of(_PAGE, Runner.TLS)
    environment = {**sidecar_environment, "PATH": PATH}
    # It is refused before anything is bound, so it may name every address of the machine.
    assert tuple(run_command(refused, environment, {}, certificates)) == refused.output
    with serve(start, environment, {"0.0.0.0:50051": "localhost:0"}, certificates) as (address,):
        replaced = {"my-host:50051": address.removeprefix("tcp://")}
        for command in asking:
            printed = run_command(command, environment, replaced, certificates)
            assert is_as_written(command.output, printed), f"{_PAGE}:{command.line}: {printed}"
            # The control: without the client's certificate the same command is not answered.
            replaced_too = {**replaced, " --tls-cert client.crt --tls-key client.key": ""}
            replaced_too[" -cert client.crt -key client.key"] = ""
            assert "SERVING" not in "".join(run_command(command, environment, replaced_too, certificates))


@needs_setup
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
            decision = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
    assert decision.status == health_pb2.HealthCheckResponse.SERVING


@needs_setup
def test_make_demo_prints_what_the_readme_says() -> None:
    """As the README has it, ranks, hashes and all."""
    (command,) = read_commands_of("README.md", Runner.CHECKOUT)
    # A make below another would say that it enters and leaves the folder.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    printed = run_command(command, environment, {}, ROOT)
    assert is_as_written(command.output, printed), "\n".join(printed)
