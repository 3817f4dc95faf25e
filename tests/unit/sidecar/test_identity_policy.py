"""The identity part of the policy: profiles, the operator's own headers, combinations, and the next part."""

from __future__ import annotations

import pytest

from sidecar.decision.decide import decide
from sidecar.fault import ConfigurationError
from sidecar.identity.catalogue import CARRIERS, DEFAULT_ORDER
from sidecar.model import AdpRouter, Engine, EngineDialect, Identity, IdentitySource, IdScope, Phase, Query
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import dump_policy, parse_policy
from sidecar.policy.holder import activate
from sidecar.policy.schema import Policy

_NOON_S = 1_893_499_200.0
"""2030-01-01T12:00:00Z."""
_ENGINE = Engine(EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION)
_BOTH = (
    "identity: {order: [conversation_id, 'header:x-session-id']}\n"
    "next_identity: {effective_at: 2030-01-01T12:00:00Z,"
    " order: [conversation_id, 'header:x-litellm-session-id', codex]}"
)


def _faults(text: str) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(text)
    return {fault.key: fault.reason for fault in caught.value.faults}


def test_profiles_give_what_is_not_written() -> None:
    """A profile sets order, scope and form; what the file writes itself stands."""
    native = parse_policy("identity: {profile: trtllm-serve}").identity
    assert (native.scope, native.ids, native.subagents, native.order[1]) == (
        "off",
        "unchanged",
        "off",
        "header:x-claude-code-session-id",
    )
    mixed = parse_policy("identity: {profile: trtllm-serve, ids: verbatim, scope: all}").identity
    assert (mixed.scope, mixed.ids, mixed.order) == ("all", "verbatim", native.order)


def test_a_profile_that_is_written_out_is_the_same_policy() -> None:
    """The epoch is of what holds, not of how it was written."""
    dumped = dump_policy(parse_policy("identity: {profile: dynamo}"))
    as_list = dumped.replace("profile: dynamo", "profile: default")
    epochs = {
        compile_policy(parse_policy(text)).identity_epoch
        for text in (dumped, as_list, "identity: {profile: dynamo}")
    }
    assert len(epochs) == 1


def test_the_default_order_has_no_carrier_that_is_off_by_default() -> None:
    """What names a request at most gateways, and what sub-agents inherit, has to be asked for."""
    assert set(CARRIERS) - set(DEFAULT_ORDER) == {
        "header:x-correlation-id",
        "header:x-claude-code-session-id",
    }


def test_own_headers_have_any_case() -> None:
    """The spelling in the policy does not count, and the client learns both names."""
    policy = compile_policy(
        parse_policy("identity: {order: [{header: X-Acme, parent_header: X-Acme-Up}], scope: off}")
    )
    assert policy.view.headers == ("x-acme", "x-acme-up")
    query = Query(Phase.PREFILL, identity=Identity(headers={"x-ACME": "conv-7f3a"}), engine=_ENGINE)
    answer = decide(query, policy)
    assert (answer.source_detail, answer.conversation_id) == ("header:x-acme", "conv-7f3a")


@pytest.mark.parametrize(
    ("entry", "key", "reason"),
    [
        ("{header: ''}", "identity.order.0.header", "is empty"),
        ("{header: 'x y'}", "identity.order.0.header", "is no header name"),
        ("{header: 'x:y'}", "identity.order.0.header", "is no header name"),
        ("{header: grün}", "identity.order.0.header", "is no header name"),
        ("{header: " + "x" * 257 + "}", "identity.order.0.header", "longer than 256 bytes"),
        ("{header: X-Session-Id}", "identity.order.0.header", "is a carrier already"),
        ("{header: X-User-Id}", "identity.order.0.header", "names a user"),
        ("{header: x-request-id}", "identity.order.0.header", "names a request"),
        ("{header: x-trtllm-subagent-affinity-id}", "identity.order.0.header", "inside of a serving stack"),
        ("{header: Cookie}", "identity.order.0.header", "is a secret"),
        ("{header: baggage}", "identity.order.0.header", "has members"),
        ("{header: X-Parent-Session-Id}", "identity.order.0.header", "that started this one"),
        ("{header: x-codex-parent-thread-id}", "identity.order.0.header", "that started this one"),
        ("{header: x-amzn-trace-id}", "identity.order.0.header", "names a request"),
        ("{header: x-dynamo-session-final}", "identity.order.0.header", "a conversation ends"),
        ("{header: x-openai-subagent}", "identity.order.0.header", "a kind of agent"),
        ("{header: session-id}", "identity.order.0.header", "a tree of agents"),
        ("{header: x-a, parent_header: ''}", "identity.order.0.parent_header", "is empty"),
        ("{header: x-a, parent_header: X-A}", "identity.order.0", "parent_header equals header"),
        ("{header: x-a, parent: x-b}", "identity.order.0.parent", "unknown key"),
        ("{}", "identity.order.0.header", "required"),
        ("header:x-sesion-id", "identity.order.0", "is no carrier; a header of your own is written"),
        ("prompt_cache_key", "identity.order.0", "is no carrier"),
        ("7", "identity.order.0", "is no carrier"),
    ],
)
def test_an_entry_that_can_never_match_is_a_fault(entry: str, key: str, reason: str) -> None:
    """A header that no request can carry, or that names no conversation, is refused at the start."""
    faults = _faults(f"identity: {{order: [{entry if entry.startswith('{') else repr(entry)}]}}")
    assert reason in faults[key]


def test_duplicates_are_faults_in_any_case() -> None:
    """Neither a carrier nor an own header may come twice."""
    faults = _faults("identity: {order: [codex, {header: X-A}, codex, {header: x-a}]}")
    assert faults == {"identity.order": "occurs twice: codex, header:x-a"}


def test_an_unknown_profile_is_a_fault_beside_others() -> None:
    """All faults come at once."""
    assert set(_faults("identity: {profile: native, scope: some}")) == {"identity.profile", "identity.scope"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ids: unchanged", "scope must be off"),
        ("ids: unchanged, scope: off, trajectory_scope: run", "trajectory_scope must be none"),
        ("subagents: off, prompt_cache_key: affinity", "places nothing by prompt_cache_key"),
        ("subagents: off, agent_context: affinity-only", "places nothing by agent_context"),
        ("agent_context: affinity-only, trajectory_scope: run", "reads no trajectory"),
    ],
)
def test_a_key_that_could_not_act_is_a_fault(text: str, reason: str) -> None:
    """No setting is silently without effect."""
    assert reason in _faults(f"identity: {{{text}}}")["identity"]


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
def test_a_client_resolves_alone_only_what_it_resolves_alike(
    text: str, expected: tuple[IdentitySource, ...]
) -> None:
    """Where a worker would read a carrier otherwise, its own rule ends before it."""
    assert compile_policy(parse_policy(f"identity: {{{text}}}")).view.local_sources == expected


def test_the_client_is_told_of_every_kind_of_carrier() -> None:
    """Metadata, body, annotations, and headers that change with each request have their own lists."""
    view = compile_policy(Policy()).view
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
    assert view.passing_headers == ("x-codex-turn-metadata", "x-dynamo-session-final")
    affinity = compile_policy(parse_policy("identity: {prompt_cache_key: affinity}")).view
    assert set(affinity.body) - set(view.body) == {"prompt_cache_key"}


def test_the_next_identity_waits_for_its_moment() -> None:
    """Before `effective_at` the present part names conversations, from then on the next one."""
    policy = parse_policy(_BOTH)
    before, after = activate(policy, now_s=_NOON_S - 0.001), activate(policy, now_s=_NOON_S)
    assert (before.changes_at, after.changes_at) == (_NOON_S, None)
    assert [carrier.key for carrier in before.compiled.carriers] == [
        "conversation_id",
        "header:x-session-id",
    ]
    assert [carrier.key for carrier in after.compiled.carriers][1:] == [
        "header:x-litellm-session-id",
        "codex",
    ]
    assert before.compiled.revision != after.compiled.revision


def test_the_next_identity_has_the_epoch_that_it_will_have() -> None:
    """After the change a file may write it as `identity`, and nothing changes."""
    after = activate(parse_policy(_BOTH), now_s=_NOON_S).compiled
    moved = compile_policy(
        parse_policy("identity: {order: [conversation_id, 'header:x-litellm-session-id', codex]}")
    )
    assert (after.identity_epoch, after.revision) == (moved.identity_epoch, moved.revision)


def test_a_coming_change_does_not_change_the_present_epoch() -> None:
    """Announcing a change changes neither epoch nor revision."""
    present = parse_policy("identity: {order: [conversation_id, 'header:x-session-id']}")
    announced = activate(parse_policy(_BOTH), now_s=_NOON_S - 1).compiled
    assert announced == compile_policy(present)


def test_before_a_change_clients_send_the_carriers_of_both() -> None:
    """Names of both parts are there; what only one of them resolves alike is not resolved alone."""
    view = activate(parse_policy(_BOTH), now_s=_NOON_S - 1).view
    assert set(view.headers) >= {"x-session-id", "x-litellm-session-id", "thread-id"}
    assert view.passing_headers == ("x-codex-turn-metadata", "x-dynamo-session-final")
    assert view.local_sources == (IdentitySource.CONVERSATION_ID,)
    rescoped = _BOTH.replace("12:00:00Z,", "12:00:00Z, scope: all,")
    silent = activate(parse_policy(rescoped), now_s=_NOON_S - 1).view
    assert (silent.local_sources, silent.scope) == ((), IdScope.WEAK)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "required"),
        ("{effective_at: 2030-01-01}", "timezone"),
        ("{effective_at: '2030-01-01 12:00:00'}", "timezone"),
        ("{effective_at: 1893499200}", "is no time"),
        ("{effective_at: soon}", "valid datetime"),
    ],
)
def test_a_change_needs_a_moment_that_all_sidecars_share(text: str, reason: str) -> None:
    """A time without a zone would be another moment on each machine."""
    assert reason in _faults(f"next_identity: {text}")["next_identity.effective_at"]
