"""The compiled policy: its hashes, what worker clients are sent of it, and what the decision reads."""

from __future__ import annotations

import pytest

from routing_hints.conversation_id import IdForm, Naming
from routing_hints.errors import ConfigurationError
from routing_hints.vocabulary import IdentitySource, IdScope, Phase
from sidecar.placement.first_rank import choose_least_loaded, choose_preferred
from sidecar.placement.settings import PlacementSettings
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from tests.support.policies import compile_yaml


def test_spelling_order_of_phases_and_defaults_written_out_do_not_change_the_hashes() -> None:
    first = compile_yaml()
    second = compile_yaml(
        "operational: {mode: on, rollout_percent: 100, placement: {phases: [prefill, aggregated]}}"
    )
    assert (first.revision, first.identity_epoch) == (second.revision, second.identity_epoch)


def test_hashes_of_the_embedded_policy_do_not_change() -> None:
    """A change of these values is a change of the policy, which sidecars of one fleet must share."""
    compiled = compile_policy(Policy())
    assert (compiled.revision, compiled.identity_epoch) == ("e51b177193e4", "f6c8a0291c09")


def test_epoch_is_of_the_identity_part_alone_and_the_revision_of_both_parts() -> None:
    base = compile_policy(Policy())
    operational = compile_yaml("operational: {mode: shadow}")
    identity = compile_yaml("identity: {scope: all}")
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
def test_client_may_resolve_alone_the_structured_carriers_that_no_other_precedes(
    text: str, expected: tuple[IdentitySource, ...]
) -> None:
    """So its local rule never decides otherwise than the sidecar would."""
    assert compile_yaml(text).view.local_sources == expected


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
def test_client_is_sent_exactly_the_headers_that_can_change_a_decision(
    text: str, expected: tuple[str, ...]
) -> None:
    assert compile_yaml(f"identity: {text}").view.headers == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ids: unchanged, scope: off", (IdentitySource.CONVERSATION_ID,)),
        (
            "agent_context: affinity-only",
            (IdentitySource.CONVERSATION_ID, IdentitySource.SESSION_CONTROL),
        ),
        ("trajectory_scope: run", (IdentitySource.CONVERSATION_ID,)),
        ("profile: dynamo", (IdentitySource.AGENT_CONTEXT,)),
    ],
)
def test_client_resolves_alone_no_carrier_that_it_would_read_otherwise(
    text: str, expected: tuple[IdentitySource, ...]
) -> None:
    assert compile_yaml(f"identity: {{{text}}}").view.local_sources == expected


def test_client_is_sent_the_fields_of_every_kind_of_carrier() -> None:
    """Headers that change with each request have a list of their own."""
    view = compile_yaml().view
    assert view.metadata == ("conversation-id",)
    assert view.annotations == ("conversation_id:",)
    assert view.body == (
        "conversation",
        "conversation.id",
        "litellm_session_id",
        "metadata.session_id",
        "metadata.user_id",
        "session_id",
        "session_params.session_id",
    )
    assert view.per_request_headers == ("x-codex-turn-metadata", "x-dynamo-session-final")
    affinity = compile_yaml("identity: {prompt_cache_key: affinity}").view
    assert set(affinity.body) - set(view.body) == {"prompt_cache_key"}


def test_every_key_of_the_file_reaches_the_decision() -> None:
    compiled = compile_yaml(
        "operational:\n"
        "  mode: shadow\n"
        "  rollout_percent: 0.5\n"
        "  single_use_guard: enforce\n"
        "  placement:\n"
        "    when: always\n"
        "    phases: [decode]\n"
        "    first: rendezvous\n"
        "    resident_weight: 0.25\n"
        "    idle_ttl_s: 60\n"
        "    lease_ttl_s: 30\n"
        "    max_conversations: 7\n"
        "  logging: {log_ids: plain, decision_sample_percent: 12.5}\n"
        "identity: {scope: all, subagents: both, ids: derive_always}"
    )
    assert (compiled.is_off, compiled.is_shadow, compiled.mode) == (False, True, "shadow")
    assert (compiled.rollout_buckets, compiled.logged_buckets) == (50, 1_250)
    assert compiled.suspends_single_use
    assert (compiled.places_always, compiled.placement_phases) == (True, {Phase.DECODE})
    assert compiled.placement == PlacementSettings(choose_preferred, 0.25, 60.0, 30.0, 7)
    assert compiled.identity.naming == Naming(IdScope.ALL, IdForm.DERIVE_ALWAYS)
    assert compiled.identity.subagent_phases == {Phase.PREFILL, Phase.AGGREGATED, Phase.DECODE}
    assert compiled.view.logs_plain_ids


def test_embedded_policy_decides_places_by_load_and_only_reports_single_use_ids() -> None:
    compiled = compile_yaml()
    assert (compiled.mode, compiled.rollout_buckets, compiled.logged_buckets) == ("on", 10_000, 0)
    assert not compiled.suspends_single_use
    assert (compiled.places_always, compiled.placement_phases) == (False, {Phase.PREFILL, Phase.AGGREGATED})
    assert compiled.placement == PlacementSettings(choose_least_loaded, 0.05, 3_600.0, 600.0, 65_536)


def test_unknown_placement_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_yaml("operational: {placement: {first: random}}")
    assert [str(problem) for problem in caught.value.problems] == [
        "operational.placement.first: is not one of least_load, rendezvous"
    ]
