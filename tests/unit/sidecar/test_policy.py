"""The policy: its file, its faults, its hashes, and what a worker's client is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.conversation import IdForm, Naming
from sidecar.fault import ConfigurationError
from sidecar.model import IdentitySource, IdScope, Phase
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import dump_policy, load_policy, parse_policy
from sidecar.policy.schema import Policy

_BAD_FILES = Path(__file__).parents[2] / "data" / "policies"

# Every bad file, and the faults that it must give: key, and a part of the reason.
_FAULTS = {
    "all_at_once.yaml": [
        ("operational.mode", "'on', 'shadow' or 'off'"),
        ("operational.rollout_percent", "less than or equal to 100"),
        ("operational.placement.phases.1", "'prefill', 'decode' or 'aggregated'"),
        ("identity.scope", "'off', 'weak' or 'all'"),
        ("identity.prefer", "unknown key"),
    ],
    "bad_headers.yaml": [
        ("identity.order.0.header", "is empty"),
        ("identity.order.1.header", "is no header name"),
        ("identity.order.2.header", "names a request"),
        ("identity.order.3.header", "is a carrier already"),
    ],
    "bad_identity.yaml": [
        ("identity.profile", "'default', 'trtllm-serve' or 'dynamo'"),
        ("identity.order.2.header", "is empty"),
        ("identity.order.3.header", "is no header name"),
        ("identity.order.6", "is no carrier"),
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
    "unknown_carrier.yaml": [("identity.order.1", "is no carrier")],
    "unknown_ids.yaml": [("identity.ids", "'verbatim', 'derive_always' or 'unchanged'")],
    "unknown_level.yaml": [("operational.logging.level", "'debug', 'info', 'warning' or 'error'")],
    "unknown_part.yaml": [("metrics", "unknown key")],
    "unknown_profile.yaml": [("identity.profile", "'default', 'trtllm-serve' or 'dynamo'")],
    "unknown_subagents.yaml": [("identity.subagents", "'off', 'context' or 'both'")],
    "unknown_when.yaml": [("operational.placement.when", "'router_rank_absent' or 'always'")],
}


def test_every_bad_file_has_an_expectation() -> None:
    """No file of the folder is left untested."""
    assert {path.name for path in _BAD_FILES.iterdir()} == set(_FAULTS)


@pytest.mark.parametrize("name", sorted(_FAULTS))
def test_bad_files_are_refused_with_every_fault(name: str) -> None:
    """Each fault has its dotted key and a reason."""
    with pytest.raises(ConfigurationError) as caught:
        load_policy(_BAD_FILES / name)
    faults = caught.value.faults
    assert sorted(fault.key for fault in faults) == sorted(key for key, _ in _FAULTS[name])
    for key, part in _FAULTS[name]:
        assert any(fault.key == key and part in fault.reason for fault in faults), faults


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    """The reason names the file."""
    with pytest.raises(ConfigurationError, match=r"policy: .*absent\.yaml: No such file"):
        load_policy(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "operational: {}\n", "---\n"])
def test_what_is_left_out_has_its_default(text: str) -> None:
    """An empty policy is the embedded one."""
    assert parse_policy(text) == Policy()


def test_on_and_off_are_words() -> None:
    """YAML 1.1 takes unquoted `on` and `off` for booleans; a policy does not."""
    policy = parse_policy("operational: {mode: off}\nidentity: {scope: off, subagents: off}")
    assert policy.operational.mode == "off"
    assert (policy.identity.scope, policy.identity.subagents) == ("off", "off")
    assert parse_policy("operational: {mode: on}").operational.mode == "on"


def test_a_dumped_policy_reads_back() -> None:
    """What GetPolicy shows is a policy file of the same policy."""
    policy = parse_policy(
        "operational: {mode: off, rollout_percent: 12.5, placement: {phases: [decode]}}\n"
        "identity: {scope: off, order: ['header:x-session-id']}"
    )
    assert parse_policy(dump_policy(policy)) == policy


def test_equal_policies_have_equal_hashes() -> None:
    """Spelling, order of phases and written-out defaults do not count."""
    first = compile_policy(parse_policy(""))
    second = compile_policy(
        parse_policy(
            "operational: {mode: on, rollout_percent: 100, placement: {phases: [prefill, aggregated]}}"
        )
    )
    assert (first.revision, first.identity_epoch) == (second.revision, second.identity_epoch)


def test_the_hashes_of_the_embedded_policy_do_not_change() -> None:
    """Sidecars of one release agree; a change of these values is a change of the policy."""
    compiled = compile_policy(Policy())
    assert (compiled.revision, compiled.identity_epoch) == ("6f1d128d649f", "f6c8a0291c09")


def test_the_epoch_is_of_the_identity_part_alone() -> None:
    """An operational change has a new revision and the old epoch, an identity change new ones."""
    base = compile_policy(Policy())
    operational = compile_policy(parse_policy("operational: {mode: shadow}"))
    identity = compile_policy(parse_policy("identity: {scope: all}"))
    assert operational.identity_epoch == base.identity_epoch
    assert len({base.revision, operational.revision, identity.revision}) == 3
    assert identity.identity_epoch != base.identity_epoch


_STRUCTURED = (
    IdentitySource.CONVERSATION_ID,
    IdentitySource.AGENT_CONTEXT,
    IdentitySource.SESSION_CONTROL,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", _STRUCTURED),
        ("operational: {mode: shadow}", ()),
        ("operational: {mode: off}", ()),
        ("operational: {rollout_percent: 99.99}", ()),
        ("identity: {ids: derive_always}", ()),
        ("identity: {order: ['header:x-session-id', conversation_id]}", ()),
        (
            "identity: {order: [agent_context, 'header:x-session-id', conversation_id]}",
            (IdentitySource.AGENT_CONTEXT,),
        ),
        (
            "identity: {order: [session_control, conversation_id]}",
            (IdentitySource.SESSION_CONTROL, IdentitySource.CONVERSATION_ID),
        ),
    ],
)
def test_a_client_may_resolve_what_no_other_carrier_precedes(
    text: str, expected: tuple[IdentitySource, ...]
) -> None:
    """The local rule never decides otherwise than the sidecar would."""
    assert compile_policy(parse_policy(text)).view.local_sources == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{order: ['header:x-dynamo-session-id', 'header:x-session-id']}",
            (
                "x-dynamo-parent-session-id",
                "x-dynamo-session-id",
                "x-parent-session-id",
                "x-session-id",
                "x-tenant-id",
            ),
        ),
        (
            "{scope: off, subagents: off, order: ['header:x-dynamo-session-id', 'header:x-session-id']}",
            ("x-dynamo-session-id", "x-session-id"),
        ),
        (
            "{scope: off, order: [claude-code, {header: X-Own, parent_header: X-Up}]}",
            (
                "x-claude-code-agent-id",
                "x-claude-code-parent-agent-id",
                "x-claude-code-session-id",
                "x-own",
                "x-up",
            ),
        ),
        (
            "{scope: off, order: [codex]}",
            ("session-id", "session_id", "thread-id", "thread_id", "x-codex-parent-thread-id"),
        ),
        ("{scope: off, order: ['header:x-session-id']}", ("x-parent-session-id", "x-session-id")),
        ("{order: [agent_context]}", ("x-tenant-id",)),
    ],
)
def test_the_client_learns_which_headers_matter(text: str, expected: tuple[str, ...]) -> None:
    """Exactly the headers that can change an answer are named."""
    assert compile_policy(parse_policy(f"identity: {text}")).view.headers == expected


def test_the_compiled_policy_holds_what_the_file_says() -> None:
    """Every key reaches the decision."""
    compiled = compile_policy(
        parse_policy(
            "operational:\n"
            "  mode: shadow\n"
            "  rollout_percent: 0.5\n"
            "  placement: {when: always, phases: [decode]}\n"
            "  logging: {log_ids: plain}\n"
            "identity: {scope: all, subagents: both, ids: derive_always}"
        )
    )
    assert (compiled.is_off, compiled.is_shadow, compiled.rollout_buckets) == (False, True, 50)
    assert (compiled.places_always, compiled.placement_phases) == (True, {Phase.DECODE})
    assert compiled.naming == Naming(IdScope.ALL, IdForm.DERIVE_ALWAYS)
    assert compiled.subagent_phases == {Phase.PREFILL, Phase.AGGREGATED, Phase.DECODE}
    assert compiled.view.logs_plain_ids
