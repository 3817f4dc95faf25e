"""`explain`: by a policy file alone, and by a running sidecar, the same text for people."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import RunCommand
from tests.support.sidecar import SidecarProcess

ORDER = "identity: {order: [conversation_id, claude-code, 'header:x-session-id', 'body:conversation']}\n"
ARGUMENTS = (
    "explain",
    "--header",
    "X-Session-Id: abc",
    "--header",
    "x-claude-code-session-id: n/a",
    "--body",
    "conversation=conv_1",
    "--dp-rank",
    "2",
)
# The hashes of `abc` and `conv_1`: 16 hexadecimal digits of BLAKE2b with the personalisation rh1-log.
EXPECTED = """\
conversation  8a737fc4763d3b2b (hash), named by header:x-session-id
id            abc (attached)
rank          WITHHOLD: send none, the engine's router places
notices       none
policy        revision <revision>, identity epoch <epoch>
request       prefill on an engine with dialect conversation_params, ADP router conversation

carriers in the policy's order; the first usable one is taken
  conversation_id                             -
  header:x-claude-code-session-id             UNUSABLE  placeholder
  header:x-session-id                         TAKEN     8a737fc4763d3b2b
  body:conversation                           outranked 3f5f21066f40ef41

rules; the first that matches decides
  single-use-carrier                          no
  unknown-enum                                no
  kind-not-normal                             no
  mode-off                                    no
  outside-rollout                             no
  mode-shadow                                 no
  conversation-router-engine-rank             YES
"""


@pytest.fixture
def policy_path(tmp_path: Path) -> str:
    """A policy with few carriers."""
    path = tmp_path / "policy.yaml"
    path.write_text(ORDER)
    return str(path)


def _without_hashes_of_the_policy(text: str) -> str:
    return re.sub(
        "revision [0-9a-f]{12}, identity epoch [0-9a-f]{12}",
        "revision <revision>, identity epoch <epoch>",
        text,
    )


def test_decision_every_carrier_and_every_tried_rule_are_shown(
    invoke_command: RunCommand, policy_path: str
) -> None:
    shown = invoke_command(*ARGUMENTS, "--policy", policy_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert _without_hashes_of_the_policy(shown.stdout) == EXPECTED


def test_a_running_sidecar_explains_as_its_policy_file_does(
    invoke_command: RunCommand, policy_path: str, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    sidecar = start_sidecar_process("--policy", policy_path)
    there = invoke_command(*ARGUMENTS, "--target", f"unix://{sidecar.socket_path}")
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == invoke_command(*ARGUMENTS, "--policy", policy_path).stdout


def test_without_a_file_the_default_policy_explains_parents_and_derived_ids(
    invoke_command: RunCommand,
) -> None:
    shown = invoke_command(
        "explain",
        "-H",
        "x-session-id: 1",
        "-H",
        "x-parent-session-id: 0",
        "--tenant",
        "t",
        "--subagent-affinity",
    )
    taken = next(line for line in shown.stdout.splitlines() if "TAKEN" in line)
    assert taken.split()[0] == "header:x-session-id"
    assert taken.endswith("derived-tenant-and-short has-parent")
    assert re.search("^id +rh1-[0-9a-f]{32} \\(attached\\)$", shown.stdout, re.MULTILINE)
    assert re.search("^placed by +rh1-[0-9a-f]{32}, ", shown.stdout, re.MULTILINE)


def test_every_carrier_has_an_option(invoke_command: RunCommand) -> None:
    shown = invoke_command(
        "explain",
        *("--conversation-id", "a", "--agent-session", "b", "--agent-parent", "p"),
        *("--session-control", "c", "--metadata", "conversation-id=d", "--annotation", "conversation_id:e"),
        *("--body", "metadata.session_id=f", "-H", "baggage: session.id=g", "--phase", "decode"),
    )
    usable = [line.split()[0] for line in shown.stdout.splitlines() if "TAKEN" in line or "outranked" in line]
    assert usable == [
        "conversation_id",
        "agent_context.session_id",
        "session_control.session_id",
        "metadata:conversation-id",
        "body:metadata.session_id",
        "annotation:conversation_id",
        "baggage:session.id",
    ]


def test_parent_last_request_and_a_timeout_without_effect_are_remarks(invoke_command: RunCommand) -> None:
    shown = invoke_command(
        "explain",
        *("--agent-trajectory", "t-1", "--agent-parent-trajectory", "t-0", "--agent-final"),
        *("--session-control", "s-1", "--session-action", "close", "--session-timeout", "300"),
    ).stdout.splitlines()
    (taken,) = (line for line in shown if "TAKEN" in line)
    (outranked,) = (line for line in shown if "outranked" in line)
    assert taken.split()[0] == "agent_context.trajectory_id"
    assert taken.endswith("has-parent last-request")
    assert outranked.split()[0] == "session_control.session_id"
    assert outranked.endswith("last-request timeout-not-used:300s")


def test_the_example_of_the_identity_page_is_what_the_command_prints(invoke_command: RunCommand) -> None:
    """Some lines are left out."""
    page = (Path(__file__).parents[3] / "docs" / "identity.md").read_text()
    block = page.split("## See what becomes of a request")[1].split("\n\n")[1]
    command, *lines = textwrap.dedent(block).replace("\\\n", " ").splitlines()
    shown = invoke_command(*shlex.split(command.removeprefix("$ "))[1:])
    rest = shown.stdout.splitlines()
    for line in lines:
        if line != "...":
            rest = rest[rest.index(line) + 1 :]
    assert len(lines) > 5


def test_a_missing_identity_is_said_in_words(invoke_command: RunCommand) -> None:
    shown = invoke_command("explain", "--agent-session", "run", "--agent-trajectory", "null").stdout
    assert "conversation  none: no carrier has a usable value" in shown
    assert "notices       no-conversation-id" in shown
    assert "agent_context.trajectory_id                 UNUSABLE  placeholder" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--header", "x-session-id"), 2, "expected a name, `:` and a value"),
        (("--target", "unix:///nowhere/s.sock", "--policy", "x"), 2, "leave --policy out"),
        (("--target", "localhost"), 1, "expected unix:///path or tcp://host:port"),
        (("--target", "unix:///nowhere/s.sock"), 1, "unix:///nowhere/s.sock: UNAVAILABLE"),
        (("--dp-size", "2", "--dp-rank", "2"), 1, "hints.dp_rank: must be less than engine.dp_size"),
        (("--policy", "/nowhere.yaml"), 2, "No such file"),
    ],
)
def test_a_bad_argument_gives_a_sentence_and_no_traceback(
    invoke_command: RunCommand, arguments: tuple[str, ...], code: int, message: str
) -> None:
    shown = invoke_command("explain", *arguments)
    assert shown.returncode == code
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
