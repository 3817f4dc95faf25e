"""The subcommands that inspect a running sidecar, against the real process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import yaml
from click.testing import CliRunner, Result

from sidecar.__main__ import main
from sidecar.cli.connection import choose_target
from tests.support.messages import HintsStub, OpenChannel, WorkerStream, make_request
from tests.support.sidecar import SidecarProcess


@pytest.fixture
def running(start_sidecar_process: Callable[..., SidecarProcess]) -> SidecarProcess:
    """A sidecar that has decided about one request."""
    sidecar = start_sidecar_process()
    with grpc.insecure_channel(sidecar.target) as channel:
        HintsStub(channel).Enrich(make_request("conv-7f3a-secret"))
    return sidecar


def _run(sidecar: SidecarProcess | Path, *arguments: str) -> Result:
    path = sidecar if isinstance(sidecar, Path) else sidecar.socket_path
    return CliRunner().invoke(main, [*arguments, "--target", f"unix://{path}"])


def test_probe_exits_with_0_where_the_sidecar_serves(running: SidecarProcess) -> None:
    result = _run(running, "probe")
    assert (result.exit_code, result.output) == (0, "SERVING\n")


def test_probe_exits_with_1_and_the_reason_where_nobody_listens(socket_folder: Path) -> None:
    result = _run(socket_folder / "absent.sock", "probe", "--timeout-s", "1")
    assert result.exit_code == 1
    assert "UNAVAILABLE" in result.output


async def test_stats_shows_streams_counters_and_gauges_in_lines(
    running: SidecarProcess, open_channel: OpenChannel
) -> None:
    """Metrics as `/metrics` has them, but for the prefix and the suffix of their names."""
    stream = WorkerStream(HintsStub(await open_channel(running.target)))
    await stream.open(worker_id="worker-a", client_version="0.2.0")
    result = await asyncio.to_thread(_run, running, "stats")
    stream.close()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("started_at ")
    assert lines[1].startswith("stream worker-a client 0.2.0 since ")
    labels = 'directive="forward",mode="on",phase="prefill",placement="none",source="header"'
    assert f"decisions{{{labels}}} 1" in lines
    assert "open_streams 1" in lines
    assert "internal_errors 0" in lines


def test_decision_shows_what_was_decided_by_both_names_and_no_id(running: SidecarProcess) -> None:
    result = _run(running, "decision", "--request", "request-1")
    assert result.exit_code == 0
    shown = json.loads(result.output)
    assert shown["decision"]["source_detail"] == "header:x-session-id"
    assert _run(running, "decision", shown["decision"]["decision_id"]).output == result.output
    assert "secret" not in result.output


def test_an_unknown_decision_is_exit_code_1_in_the_words_of_the_sidecar(running: SidecarProcess) -> None:
    result = _run(running, "decision", "x-0")
    assert result.exit_code == 1
    assert "NOT_FOUND: not among the last decisions" in result.output


def test_policy_show_prints_the_policy_in_force_as_yaml_with_its_origin(running: SidecarProcess) -> None:
    """It can be saved and edited."""
    result = _run(running, "policy", "show")
    assert result.exit_code == 0
    assert "# from embedded" in result.output
    assert yaml.safe_load(result.output)["operational"]["mode"] == "on"


def test_an_empty_table_of_conversations_is_said_in_words(running: SidecarProcess) -> None:
    result = _run(running, "conversations")
    assert (result.exit_code, result.output.partition(":")[0]) == (0, "no conversations")


@pytest.mark.parametrize("command", ["probe", "stats", "conversations", "policy show", "decision x"])
def test_an_invalid_target_is_an_error_that_says_what_an_address_looks_like(command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "--target", "localhost"])
    assert result.exit_code == 1
    assert "expected unix:///path or tcp://host:port" in result.output


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "unix:///run/routing-hints/sidecar.sock"),
        ({"ROUTING_HINTS_LISTEN": "unix:///a, tcp://127.0.0.1:1"}, "unix:///a"),
        ({"ROUTING_HINTS_LISTEN": "unix:///a", "ROUTING_HINTS_TARGET": "unix:///b"}, "unix:///b"),
        ({"ROUTING_HINTS_TARGET": " "}, "unix:///run/routing-hints/sidecar.sock"),
    ],
)
def test_without_an_option_the_environment_names_the_sidecar(
    environment: dict[str, str], expected: str
) -> None:
    """So that the commands need none in the container of a sidecar or of a worker."""
    assert choose_target(environment) == expected
