"""`policy`: the default policy that documents itself, and the check of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy
from sidecar.policy.schema import Policy
from tests.support.command import RunCommand

BAD_FILES = Path(__file__).parents[2] / "data" / "policies"


def test_the_printed_default_reads_back_as_the_policy_without_a_file(invoke_command: RunCommand) -> None:
    printed = invoke_command("policy", "--print-default")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert parse_policy(printed.stdout) == Policy()


def test_the_printed_default_has_every_key(invoke_command: RunCommand) -> None:
    """So that none can be found in the code alone."""
    printed = yaml.load(invoke_command("policy", "--print-default").stdout, Loader=yaml.BaseLoader)  # noqa: S506

    def list_keys(content: object, path: str = "") -> set[str]:
        if not isinstance(content, dict):
            return set()
        inner = [list_keys(value, f"{path}{key}.") for key, value in content.items()]
        return {f"{path}{key}" for key in content}.union(*inner)

    assert list_keys(printed) == list_keys(Policy().model_dump())


def test_the_printed_default_has_the_choices_of_each_key_in_its_comment(invoke_command: RunCommand) -> None:
    printed = invoke_command("policy", "--print-default").stdout
    for choices in (
        "on | shadow | off",
        "report | enforce",
        "router_rank_absent | always",
        "least_load | rendezvous",
        "debug | info | warning | error",
        "json | console",
        "hashed | plain",
        "default | trtllm-serve | dynamo",
        "off | weak | all",
        "off | context | both",
        "verbatim | derive_always | unchanged",
        "conversation | affinity-only",
        "none | run",
        "ignore | affinity",
    ):
        assert f"# {choices}" in printed


def test_a_good_file_is_shown_with_its_hashes(invoke_command: RunCommand, tmp_path: Path) -> None:
    """Those that the sidecar would have in its decisions, before and after a scheduled change."""
    text = "identity: {scope: all}\nnext_identity: {effective_at: 2130-01-31T12:00:00Z, profile: dynamo}\n"
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    checked = invoke_command("policy", "check", str(path))
    assert checked.returncode == 0
    now = compile_policy(parse_policy("identity: {scope: all}"))
    later = compile_policy(parse_policy("identity: {profile: dynamo}"))
    assert checked.stdout.splitlines() == [
        f"{path}: ok",
        f"  policy revision  {now.revision}",
        f"  identity epoch   {now.identity_epoch}",
        f"  from 2130-01-31T12:00:00+00:00: identity epoch {later.identity_epoch}",
    ]


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        (
            "all_at_once.yaml",
            [
                "identity.prefer",
                "identity.scope",
                "operational.mode",
                "operational.placement.phases.1",
                "operational.rollout_percent",
            ],
        ),
        ("bad_headers.yaml", [f"identity.order.{number}.header" for number in range(4)]),
    ],
)
def test_all_problems_of_a_bad_file_come_at_once_with_their_dotted_keys(
    invoke_command: RunCommand, name: str, problems: list[str]
) -> None:
    checked = invoke_command("policy", "check", str(BAD_FILES / name))
    assert (checked.returncode, checked.stdout) == (2, "")
    assert sorted(line.partition(":")[0] for line in checked.stderr.splitlines()) == problems


def test_a_missing_file_is_no_valid_policy(invoke_command: RunCommand, tmp_path: Path) -> None:
    checked = invoke_command("policy", "check", str(tmp_path / "absent.yaml"))
    assert checked.returncode == 2
    assert "No such file" in checked.stderr


def test_serve_refuses_what_check_refuses_in_the_same_words(
    invoke_command: RunCommand, socket_folder: Path
) -> None:
    bad = str(BAD_FILES / "bad_headers.yaml")
    served = invoke_command("serve", "--listen", f"unix://{socket_folder}/s.sock", "--policy", bad)
    assert served.returncode == 2
    assert served.stderr == invoke_command("policy", "check", bad).stderr
