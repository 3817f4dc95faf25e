"""The commands of the pages do what the pages say, by the real grpcurl and the real sidecar."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.story import tell
from tests.docs.transcript import is_as_written, read_commands, run_command
from tests.fixtures.sidecar import SidecarProcess

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
# Where the pages say that the sidecar is.
_TCP, _METRICS, _SOCKET = "127.0.0.1:50051", "127.0.0.1:9464", "/run/routing-hints/sidecar.sock"
# What other tests run: scripts of the checkout, and containers.
_RUN_ELSEWHERE = ("make ", "docker ")

PATH = os.pathsep.join([str(TOOLS), str(Path(sys.executable).parent), os.environ["PATH"]])

pytestmark = [
    # Each page starts some twenty programs, one after the other.
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        shutil.which("grpcurl", path=PATH) is None,
        reason="grpcurl is missing; `go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3` makes it",
    ),
]


@pytest.mark.parametrize("page", ["README.md", "docs/debugging.md"])
def test_commands_print_what_the_page_says(
    page: str, start_sidecar_process: Callable[..., SidecarProcess], sidecar_environment: dict[str, str]
) -> None:
    """Every command of the page, in order, against one sidecar."""
    sidecar = start_sidecar_process("--listen", "tcp://127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
    if page == "docs/debugging.md":
        tell(sidecar.target)
    started = json.loads(sidecar.lines[-1])
    replaced = {
        _TCP: started["listen"][1].removeprefix("tcp://"),
        _METRICS: started["metrics_listen"],
        _SOCKET: str(sidecar.socket_path),
    }
    commands = [
        command for command in read_commands(ROOT / page) if not command.text.startswith(_RUN_ELSEWHERE)
    ]
    assert commands
    for command in commands:
        printed = run_command(command, {**sidecar_environment, "PATH": PATH}, replaced)
        assert is_as_written(command.output, printed), "\n".join(
            [f"{page}:{command.line}: $ {command.text}", "printed:", *printed]
        )
