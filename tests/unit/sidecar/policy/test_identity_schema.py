"""The identity part of the policy: profiles, the operator's own headers, and keys that exclude each other."""

from __future__ import annotations

import pytest

from routing_hints.errors import ConfigurationError
from routing_hints.vocabulary import AdpRouter, EngineDialect, Phase
from sidecar.decision.decide import decide
from sidecar.identity.catalogue import CARRIERS, DEFAULT_ORDER
from sidecar.model import Engine, Identity, Request
from sidecar.policy.file import dump_policy, parse_policy
from tests.support.policies import compile_yaml

_ENGINE = Engine(EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION)


def _list_problems(text: str) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(text)
    return {problem.key: problem.reason for problem in caught.value.problems}


def test_profile_sets_the_keys_that_the_file_omits() -> None:
    native = parse_policy("identity: {profile: trtllm-serve}").identity
    assert (native.scope, native.ids, native.subagents, native.order[1]) == (
        "off",
        "unchanged",
        "off",
        "header:x-claude-code-session-id",
    )
    mixed = parse_policy("identity: {profile: trtllm-serve, ids: verbatim, scope: all}").identity
    assert (mixed.scope, mixed.ids, mixed.order) == ("all", "verbatim", native.order)


def test_profile_written_out_has_the_same_epoch() -> None:
    """The epoch is of what is in force, not of how it is written."""
    dumped = dump_policy(parse_policy("identity: {profile: dynamo}"))
    as_list = dumped.replace("profile: dynamo", "profile: default")
    epochs = {compile_yaml(text).identity_epoch for text in (dumped, as_list, "identity: {profile: dynamo}")}
    assert len(epochs) == 1


def test_default_order_has_every_carrier_but_two() -> None:
    """One names a request at most gateways, and the other is inherited by sub-agents."""
    assert set(CARRIERS) - set(DEFAULT_ORDER) == {
        "header:x-correlation-id",
        "header:x-claude-code-session-id",
    }


def test_header_of_the_operator_is_compared_in_any_case_and_sent_to_clients_in_lower_case() -> None:
    policy = compile_yaml("identity: {order: [{header: X-Acme, parent_header: X-Acme-Up}], scope: off}")
    assert policy.view.headers == ("x-acme", "x-acme-up")
    request = Request(Phase.PREFILL, identity=Identity(headers={"x-ACME": "conv-7f3a"}), engine=_ENGINE)
    decision = decide(request, policy)
    assert (decision.source_detail, decision.conversation_id) == ("header:x-acme", "conv-7f3a")


@pytest.mark.parametrize(
    ("entry", "key", "reason"),
    [
        ("{header: ''}", "identity.order.0.header", "is empty"),
        ("{header: 'x y'}", "identity.order.0.header", "is not a valid header name"),
        ("{header: 'x:y'}", "identity.order.0.header", "is not a valid header name"),
        ("{header: grün}", "identity.order.0.header", "is not a valid header name"),
        ("{header: " + "x" * 257 + "}", "identity.order.0.header", "longer than 256 bytes"),
        ("{header: X-Session-Id}", "identity.order.0.header", "is a carrier already"),
        ("{header: X-User-Id}", "identity.order.0.header", "names a user"),
        ("{header: x-request-id}", "identity.order.0.header", "names a request"),
        ("{header: x-trtllm-subagent-affinity-id}", "identity.order.0.header", "inside a serving stack"),
        ("{header: Cookie}", "identity.order.0.header", "is a secret"),
        ("{header: baggage}", "identity.order.0.header", "has members"),
        ("{header: X-Parent-Session-Id}", "identity.order.0.header", "that started this one"),
        ("{header: x-codex-parent-thread-id}", "identity.order.0.header", "that started this one"),
        ("{header: x-amzn-trace-id}", "identity.order.0.header", "names a request"),
        ("{header: x-dynamo-session-final}", "identity.order.0.header", "last request of a conversation"),
        ("{header: x-openai-subagent}", "identity.order.0.header", "a kind of agent"),
        ("{header: session-id}", "identity.order.0.header", "a tree of agents"),
        ("{header: x-a, parent_header: ''}", "identity.order.0.parent_header", "is empty"),
        ("{header: x-a, parent_header: X-A}", "identity.order.0", "parent_header equals header"),
        ("{header: x-a, parent: x-b}", "identity.order.0.parent", "unknown key"),
        ("{}", "identity.order.0.header", "required"),
        ("header:x-sesion-id", "identity.order.0", "is not a carrier; write a header of your own"),
        ("prompt_cache_key", "identity.order.0", "is not a carrier"),
        ("7", "identity.order.0", "is not a carrier"),
    ],
)
def test_entry_that_no_request_can_have_or_that_names_no_conversation_is_refused(
    entry: str, key: str, reason: str
) -> None:
    problems = _list_problems(f"identity: {{order: [{entry if entry.startswith('{') else repr(entry)}]}}")
    assert reason in problems[key]


def test_carrier_or_header_that_occurs_twice_in_any_case_is_refused() -> None:
    problems = _list_problems("identity: {order: [codex, {header: X-A}, codex, {header: x-a}]}")
    assert problems == {"identity.order": "occurs twice: codex, header:x-a"}


def test_unknown_profile_is_refused_together_with_other_problems() -> None:
    assert set(_list_problems("identity: {profile: native, scope: some}")) == {
        "identity.profile",
        "identity.scope",
    }


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
def test_key_that_can_have_no_effect_is_refused(text: str, reason: str) -> None:
    assert reason in _list_problems(f"identity: {{{text}}}")["identity"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "required"),
        ("{effective_at: 2030-01-01}", "timezone"),
        ("{effective_at: '2030-01-01 12:00:00'}", "timezone"),
        ("{effective_at: 1893499200}", "is not a time"),
        ("{effective_at: soon}", "valid datetime"),
    ],
)
def test_scheduled_change_needs_a_time_with_its_zone(text: str, reason: str) -> None:
    """Without one it would be another moment on each machine."""
    assert reason in _list_problems(f"next_identity: {text}")["next_identity.effective_at"]
