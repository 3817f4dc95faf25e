"""The commands of the pages do what the pages say, by the real grpcurl and the real sidecar."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, Runner, read_commands_of
from tests.docs.story import tell
from tests.docs.transcript import Command, is_as_written, run_command, serve
from tests.support.sidecar import SidecarProcess

TOOLS = ROOT / ".tools"
# Where the pages say that the sidecar is.
_TCP, _METRICS, _SOCKET = "127.0.0.1:50051", "127.0.0.1:9464", "/run/routing-hints/sidecar.sock"

PATH = os.pathsep.join([str(TOOLS), str(Path(sys.executable).parent), os.environ["PATH"]])

pytestmark = [
    # Each page starts some twenty programs, one after the other.
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        shutil.which("grpcurl", path=PATH) is None,
        reason="grpcurl is missing; `go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3` makes it",
    ),
]


def test_commands_of_the_debugging_page_print_what_it_says(
    start_sidecar_process: Callable[..., SidecarProcess], sidecar_environment: dict[str, str], tmp_path: Path
) -> None:
    """Every command of the page, in order, against one sidecar with the page's story."""
    sidecar = start_sidecar_process("--listen", "tcp://127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    tell(sidecar.target)
    started = json.loads(next(line for line in sidecar.lines if "sidecar_started" in line))
    replaced = {
        _TCP: started["listen"][1].removeprefix("tcp://"),
        _METRICS: started["metrics_listen"],
        _SOCKET: str(sidecar.socket_path),
    }
    commands = read_commands_of("docs/debugging.md", Runner.SIDECAR)
    _run_all("docs/debugging.md", commands, sidecar_environment, replaced, tmp_path)


def test_commands_of_the_readme_print_what_it_says(
    socket_folder: Path, sidecar_environment: dict[str, str], tmp_path: Path
) -> None:
    """Every command about the sidecar, in order, against the one that the page itself starts."""
    commands = read_commands_of("README.md", Runner.SIDECAR)
    (start,) = [number for number, command in enumerate(commands) if " serve " in command.text]
    replaced = {_TCP: "127.0.0.1:0", _SOCKET: str(socket_folder / "sidecar.sock")}
    environment = {**sidecar_environment, "PATH": PATH}
    _run_all("README.md", commands[:start], sidecar_environment, replaced, tmp_path)
    with serve(commands[start], environment, replaced, tmp_path) as addresses:
        replaced[_TCP] = addresses[1].removeprefix("tcp://")
        _run_all("README.md", commands[start + 1 :], sidecar_environment, replaced, tmp_path)


def _run_all(
    page: str, commands: list[Command], environment: dict[str, str], replaced: dict[str, str], folder: Path
) -> None:
    assert commands
    for command in commands:
        printed = run_command(command, {**environment, "PATH": PATH}, replaced, folder)
        assert is_as_written(command.output, printed), "\n".join(
            [f"{page}:{command.line}: $ {command.text}", "printed:", *printed]
        )
