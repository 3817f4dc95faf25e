"""`conformance`: the vectors against a real sidecar over its socket, for every policy that they suppose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.conformance.vector import load_policies, load_vectors
from tests.support.command import RunCommand
from tests.support.sidecar import SidecarProcess

Start = Callable[..., SidecarProcess]
COUNTS = Counter(vector.policy for vector in load_vectors())


@pytest.mark.parametrize("name", sorted(load_policies()))
def test_the_sidecar_conforms(
    name: str, invoke_command: RunCommand, start_sidecar_process: Start, tmp_path: Path
) -> None:
    """A sidecar with the printed policy is recognized by its epoch, and decides every vector as expected."""
    path = tmp_path / "policy.yaml"
    path.write_text(invoke_command("conformance", "--print-policy", "--policy", name).stdout)
    sidecar = start_sidecar_process("--policy", str(path))
    checked = invoke_command("conformance", "--target", f"unix://{sidecar.socket_path}")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout == f"{COUNTS[name]} of {COUNTS[name]} vectors of policy {name} conform\n"


def test_a_sidecar_that_differs_fails(
    invoke_command: RunCommand, start_sidecar_process: Start, tmp_path: Path
) -> None:
    """The control: one that reads fewer carriers, with the reason of each vector."""
    path = tmp_path / "policy.yaml"
    path.write_text("identity: {order: [conversation_id]}\n")
    sidecar = start_sidecar_process("--policy", str(path))
    checked = invoke_command(
        "conformance", "--target", f"unix://{sidecar.socket_path}", "--policy", "default"
    )
    assert checked.returncode == 1
    assert "Claude Code: sub-agent\n" in checked.stderr
    assert "conversation_id: None instead of 'agent-a'" in checked.stderr
    assert "because sub-agents inherit the session's header" in checked.stderr


def test_an_unknown_policy_has_to_be_named(
    invoke_command: RunCommand, start_sidecar_process: Start, tmp_path: Path
) -> None:
    """An epoch of no known policy checks nothing, and that is no success."""
    path = tmp_path / "policy.yaml"
    path.write_text("identity: {order: [conversation_id]}\n")
    sidecar = start_sidecar_process("--policy", str(path))
    checked = invoke_command("conformance", "--target", f"unix://{sidecar.socket_path}")
    assert checked.returncode == 2
    assert "no known policy has identity epoch" in checked.stderr


def test_a_target_where_nobody_listens_does_not_conform(invoke_command: RunCommand) -> None:
    checked = invoke_command("conformance", "--target", "unix:///nowhere/s.sock")
    assert checked.returncode == 1
    assert "unix:///nowhere/s.sock: UNAVAILABLE" in checked.stderr
