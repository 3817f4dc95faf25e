"""The subcommands that look into a running sidecar, against the real process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import yaml
from click.testing import CliRunner, Result

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from sidecar.__main__ import main
from sidecar.cli.connection import choose_target
from tests.support.sidecar import SidecarProcess


@pytest.fixture
def running(start_sidecar_process: Callable[..., SidecarProcess]) -> SidecarProcess:
    """A sidecar that has decided about one request."""
    sidecar = start_sidecar_process()
    identity = types_pb2.Identity(headers={"x-session-id": "conv-7f3a-secret"})
    request = service_pb2.EnrichRequest(request_id="r-1", phase=types_pb2.PHASE_PREFILL, identity=identity)
    with grpc.insecure_channel(sidecar.target) as channel:
        service_pb2_grpc.RoutingHintsServiceStub(channel).Enrich(request)
    return sidecar


def _run(sidecar: SidecarProcess | Path, *arguments: str) -> Result:
    path = sidecar if isinstance(sidecar, Path) else sidecar.socket_path
    return CliRunner().invoke(main, [*arguments, "--target", f"unix://{path}"])


def test_probe_says_serving(running: SidecarProcess) -> None:
    """A sidecar that serves is exit code 0."""
    result = _run(running, "probe")
    assert (result.exit_code, result.output) == (0, "SERVING\n")


def test_probe_fails_without_a_sidecar(socket_folder: Path) -> None:
    """Nobody there is exit code 1, with the reason."""
    result = _run(socket_folder / "absent.sock", "probe", "--timeout-s", "1")
    assert result.exit_code == 1
    assert "UNAVAILABLE" in result.output


def test_stats_shows_the_counters(running: SidecarProcess) -> None:
    """A line each, as `/metrics` would have it."""
    result = _run(running, "stats")
    assert result.exit_code == 0
    expected = (
        r'^decisions\{decision="none",directive="forward",mode="on",phase="prefill",source="header"\} 1$'
    )
    assert re.search(expected, result.output, re.M)
    assert "open_streams 0\n" in result.output


def test_decision_shows_what_was_decided(running: SidecarProcess) -> None:
    """By its request's id, without the conversation's."""
    result = _run(running, "decision", "--request", "r-1")
    assert result.exit_code == 0
    shown = json.loads(result.output)
    assert shown["answer"]["source_detail"] == "header:x-session-id"
    assert _run(running, "decision", shown["answer"]["decision_id"]).output == result.output
    assert "secret" not in result.output


def test_an_unknown_decision_is_an_error(running: SidecarProcess) -> None:
    """The sidecar's own words, and exit code 1."""
    result = _run(running, "decision", "x-0")
    assert result.exit_code == 1
    assert "NOT_FOUND: not among the last decisions" in result.output


def test_policy_show_prints_the_policy_in_force(running: SidecarProcess) -> None:
    """YAML that can be saved and edited; where it is from stands in comments."""
    result = _run(running, "policy", "show")
    assert result.exit_code == 0
    assert "# from embedded" in result.output
    assert yaml.safe_load(result.output)["operational"]["mode"] == "on"


def test_conversations_says_that_there_are_none(running: SidecarProcess) -> None:
    """An empty table is said in words, since the engines place here."""
    result = _run(running, "conversations")
    assert (result.exit_code, result.output.partition(":")[0]) == (0, "no conversations")


@pytest.mark.parametrize("command", ["probe", "stats", "conversations", "policy show", "decision x"])
def test_no_address_is_an_error(command: str) -> None:
    """The message says what an address looks like."""
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
def test_the_environment_names_the_sidecar(environment: dict[str, str], expected: str) -> None:
    """In the container of a sidecar or of a worker the commands need no option."""
    assert choose_target(environment) == expected
