"""The policy file: what is read from it, and everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from routing_hints.errors import ConfigurationError
from sidecar.policy.file import dump_policy, load_policy, parse_policy
from sidecar.policy.schema import Policy

_BAD_FILES = Path(__file__).parents[3] / "data" / "policies"

# Every bad file, and the problems that it must give: key, and a part of the reason.
_PROBLEMS = {
    "all_at_once.yaml": [
        ("operational.mode", "'on', 'shadow' or 'off'"),
        ("operational.rollout_percent", "less than or equal to 100"),
        ("operational.placement.phases.1", "'prefill', 'decode' or 'aggregated'"),
        ("identity.scope", "'off', 'weak' or 'all'"),
        ("identity.prefer", "unknown key"),
    ],
    "bad_headers.yaml": [
        ("identity.order.0.header", "is empty"),
        ("identity.order.1.header", "is not a valid header name"),
        ("identity.order.2.header", "names a request"),
        ("identity.order.3.header", "is a carrier already"),
    ],
    "bad_identity.yaml": [
        ("identity.profile", "is not one of default, trtllm-serve, dynamo"),
        ("identity.order.2.header", "is empty"),
        ("identity.order.3.header", "is not a valid header name"),
        ("identity.order.6", "is not a carrier"),
        ("identity.order", "occurs twice: codex, header:x-acme"),
        ("identity", "scope must be off"),
    ],
    "boolean_mode.yaml": [("operational.mode", "'on', 'shadow' or 'off'")],
    "duplicate_carrier.yaml": [("identity.order", "occurs twice: session_control")],
    "duplicate_key.yaml": [("operational.mode", "occurs twice")],
    "empty_order.yaml": [("identity.order", "has no carrier")],
    "idle_setting.yaml": [("identity", "places nothing by prompt_cache_key")],
    "infinite_rollout.yaml": [("operational.rollout_percent", "finite number")],
    "misspelled_key.yaml": [("operational.rollout_precent", "unknown key")],
    "negative_rollout.yaml": [("operational.rollout_percent", "greater than or equal to 0")],
    "next_without_a_zone.yaml": [("next_identity.effective_at", "timezone")],
    "no_date.yaml": [("policy", "is not YAML")],
    "not_a_mapping.yaml": [("policy", "must be a mapping")],
    "not_utf8.yaml": [("policy", "is not UTF-8")],
    "not_yaml.yaml": [("policy", "is not YAML")],
    "part_is_a_list.yaml": [("identity", "must be a mapping")],
    "python_tag.yaml": [("policy", "is not YAML")],
    "rollout_as_text.yaml": [("operational.rollout_percent", "valid number")],
    "two_documents.yaml": [("policy", "is not YAML")],
    "unknown_carrier.yaml": [("identity.order.1", "is not a carrier")],
    "unknown_ids.yaml": [("identity.ids", "'verbatim', 'derive_always' or 'unchanged'")],
    "unknown_level.yaml": [("operational.logging.level", "'debug', 'info', 'warning' or 'error'")],
    "unknown_part.yaml": [("metrics", "unknown key")],
    "unknown_profile.yaml": [("identity.profile", "is not one of default, trtllm-serve, dynamo")],
    "unknown_subagents.yaml": [("identity.subagents", "'off', 'context' or 'both'")],
    "unknown_when.yaml": [("operational.placement.when", "'router_rank_absent' or 'always'")],
}


def test_every_bad_file_has_an_expectation() -> None:
    assert {path.name for path in _BAD_FILES.iterdir()} == set(_PROBLEMS)


@pytest.mark.parametrize("name", sorted(_PROBLEMS))
def test_bad_file_is_refused_with_the_dotted_key_and_the_reason_of_every_problem(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_policy(_BAD_FILES / name)
    problems = caught.value.problems
    assert sorted(problem.key for problem in problems) == sorted(key for key, _ in _PROBLEMS[name])
    for key, part in _PROBLEMS[name]:
        assert any(problem.key == key and part in problem.reason for problem in problems), problems


def test_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"policy: .*absent\.yaml: No such file"):
        load_policy(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "operational: {}\n", "---\n"])
def test_empty_file_is_the_embedded_policy(text: str) -> None:
    assert parse_policy(text) == Policy()


def test_unquoted_on_and_off_are_words() -> None:
    """In YAML 1.1 they are booleans."""
    policy = parse_policy("operational: {mode: off}\nidentity: {scope: off, subagents: off}")
    assert policy.operational.mode == "off"
    assert (policy.identity.scope, policy.identity.subagents) == ("off", "off")
    assert parse_policy("operational: {mode: on}").operational.mode == "on"


def test_dumped_policy_reads_back_as_the_same() -> None:
    """What GetPolicy shows is a policy file."""
    policy = parse_policy(
        "operational: {mode: off, rollout_percent: 12.5, placement: {phases: [decode]}}\n"
        "identity: {scope: off, order: ['header:x-session-id']}"
    )
    assert parse_policy(dump_policy(policy)) == policy
