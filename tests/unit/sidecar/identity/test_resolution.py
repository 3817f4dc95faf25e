"""Which carrier is selected, and what Explain shows of the others."""

from __future__ import annotations

from base64 import b64encode

import pytest

from routing_hints.vocabulary import CarrierVerdict, IdentitySource, Phase
from sidecar.decision.decide import decide, explain
from sidecar.identity.resolution import resolve_claim
from sidecar.model import AgentContext, Identity, Request, SessionControl
from tests.support.policies import compile_yaml

_POLICY = compile_yaml()
# From docs/contract.md.
_HASHES = {"conv-7f3a": "7c5832ae00b4609f", "1": "ee18d659bbcad1ac"}
_HEADER = "header:x-dynamo-session-id"


def _headers(**headers: str) -> Identity:
    return Identity(headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("identity", "source", "detail"),
    [
        (Identity(conversation_id="conv-7f3a"), IdentitySource.CONVERSATION_ID, "conversation_id"),
        (
            Identity(agent_context=AgentContext(session_id="conv-7f3a")),
            IdentitySource.AGENT_CONTEXT,
            "agent_context.session_id",
        ),
        (
            Identity(agent_context=AgentContext(session_id="run", trajectory_id="conv-7f3a")),
            IdentitySource.AGENT_CONTEXT,
            "agent_context.trajectory_id",
        ),
        (
            Identity(agent_context=AgentContext(trajectory_id="conv-7f3a")),
            IdentitySource.AGENT_CONTEXT,
            "agent_context.trajectory_id",
        ),
        (
            Identity(session_control=SessionControl(session_id="conv-7f3a")),
            IdentitySource.SESSION_CONTROL,
            "session_control.session_id",
        ),
        (_headers(x_dynamo_session_id="conv-7f3a"), IdentitySource.HEADER, _HEADER),
        (_headers(X_Session_ID="conv-7f3a"), IdentitySource.HEADER, "header:x-session-id"),
    ],
)
def test_only_carrier_of_a_request_is_selected_and_named(
    identity: Identity, source: IdentitySource, detail: str
) -> None:
    decision = decide(Request(Phase.PREFILL, identity=identity), _POLICY)
    assert (decision.source, decision.source_detail) == (source, detail)
    assert decision.conversation_hash == _HASHES["conv-7f3a"]


def test_request_without_carriers_has_neither_source_nor_hash() -> None:
    decision = decide(Request(Phase.PREFILL, identity=_headers(x_request_id="1")), _POLICY)
    assert (decision.source, decision.source_detail, decision.conversation_hash) == (
        IdentitySource.NONE,
        "",
        "",
    )


def test_first_carrier_of_the_order_that_the_request_has_is_selected() -> None:
    parts = {
        "conversation_id": "a",
        "agent_context": AgentContext("b"),
        "session_control": SessionControl("c"),
        "headers": {"x-dynamo-session-id": "d", "x-session-id": "e"},
    }
    won = []
    for part in ("none", "conversation_id", "agent_context", "session_control"):
        parts.pop(part, None)
        identity = Identity(**parts)  # type: ignore[arg-type]
        won.append(decide(Request(Phase.DECODE, identity=identity), _POLICY).source_detail)
    assert won == ["conversation_id", "agent_context.session_id", "session_control.session_id", _HEADER]


def test_carrier_that_the_policy_omits_is_not_read() -> None:
    policy = compile_yaml("identity: {order: ['header:x-session-id', session_control]}")
    identity = Identity(
        conversation_id="a", session_control=SessionControl("b"), headers={"x-session-id": "conv-7f3a"}
    )
    decision = decide(Request(Phase.PREFILL, identity=identity), policy)
    assert (decision.source_detail, decision.conversation_hash) == (
        "header:x-session-id",
        _HASHES["conv-7f3a"],
    )


@pytest.mark.parametrize(
    "value", ["", " ", "\t\n", "null", "None", "UNDEFINED", "n/a", "N/A", "unknown", "-", " - "]
)
def test_blank_or_placeholder_yields_to_the_next_carrier(value: str) -> None:
    decision = decide(
        Request(Phase.PREFILL, identity=_headers(x_dynamo_session_id=value, x_session_id="conv-7f3a")),
        _POLICY,
    )
    assert (decision.source_detail, decision.conversation_hash) == (
        "header:x-session-id",
        _HASHES["conv-7f3a"],
    )


@pytest.mark.parametrize("value", ["nullable", "--", "0", "unknown-1", "n / a"])
def test_value_that_only_resembles_a_placeholder_is_usable(value: str) -> None:
    decision = decide(Request(Phase.PREFILL, identity=Identity(conversation_id=value)), _POLICY)
    assert decision.source is IdentitySource.CONVERSATION_ID


def test_unusable_trajectory_does_not_fall_back_to_the_run() -> None:
    """The run names a tree of agents and is never a conversation."""
    identity = Identity(agent_context=AgentContext(session_id="run", trajectory_id="null"))
    assert decide(Request(Phase.PREFILL, identity=identity), _POLICY).source is IdentitySource.NONE


def test_white_space_around_a_value_is_trimmed() -> None:
    decision = decide(
        Request(Phase.PREFILL, identity=Identity(conversation_id=" \tconv-7f3a\u2003")), _POLICY
    )
    assert decision.conversation_hash == _HASHES["conv-7f3a"]


def test_trimmed_characters_are_those_that_the_contract_lists() -> None:
    """The list of docs/contract.md; Python's could grow with its Unicode tables."""
    listed = [*range(0x9, 0xE), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
    listed += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    assert listed == [code for code in range(0x110000) if not chr(code).strip()]


@pytest.mark.parametrize(
    "identity",
    [
        Identity(agent_context=AgentContext("a", session_final=True)),
        Identity(session_control=SessionControl("a", "close")),
        _headers(x_session_id="a", x_dynamo_session_final="True "),
        Identity(conversation_id="a", headers={"X-Dynamo-Session-Final": "true"}),
    ],
)
def test_last_request_is_recognized_by_each_carrier_and_by_the_header_beside_any(identity: Identity) -> None:
    assert decide(Request(Phase.PREFILL, identity=identity), _POLICY).session_final


@pytest.mark.parametrize(
    "identity",
    [
        Identity(agent_context=AgentContext("a")),
        Identity(session_control=SessionControl("a", "open")),
        Identity(session_control=SessionControl("a", "bind")),
        _headers(x_session_id="a", x_dynamo_session_final="false"),
        _headers(x_session_id="a", x_dynamo_session_final="yes, please"),
        _headers(x_dynamo_session_final="true"),
    ],
)
def test_no_other_request_is_the_last(identity: Identity) -> None:
    assert not decide(Request(Phase.PREFILL, identity=identity), _POLICY).session_final


def test_explain_tells_an_empty_header_from_an_absent_one() -> None:
    traces = explain(Request(Phase.PREFILL, identity=_headers(x_session_id="")), _POLICY).carriers
    seen = {trace.name: (trace.verdict, trace.reason) for trace in traces}
    assert seen[_HEADER] == (CarrierVerdict.ABSENT, "")
    assert seen["header:x-session-id"] == (CarrierVerdict.UNUSABLE, "blank")


@pytest.mark.parametrize("parent_id", ["a", " a ", "", "  ", "Null"])
def test_parent_is_never_the_session_itself_a_blank_or_a_placeholder(parent_id: str) -> None:
    identity = Identity(agent_context=AgentContext("a", parent_id))
    claim = resolve_claim(_POLICY.identity, identity, {})
    assert claim is not None
    assert claim.parent_id == ""


def test_explain_shows_absent_unusable_taken_and_outranked_carriers_in_the_policys_order() -> None:
    identity = Identity(
        agent_context=AgentContext("  "),
        session_control=SessionControl("n/a"),
        headers={"X-Dynamo-Session-Id": "conv-7f3a", "x-session-id": "1"},
    )
    policy = compile_yaml(
        "identity: {order: [conversation_id, agent_context, session_control,"
        " 'header:x-dynamo-session-id', 'header:x-session-id']}"
    )
    traces = explain(Request(Phase.PREFILL, identity=identity), policy).carriers
    assert [(t.name, t.verdict, t.reason, t.conversation_hash) for t in traces] == [
        ("conversation_id", CarrierVerdict.ABSENT, "", ""),
        ("agent_context.session_id", CarrierVerdict.UNUSABLE, "blank", ""),
        ("session_control.session_id", CarrierVerdict.UNUSABLE, "placeholder", ""),
        (_HEADER, CarrierVerdict.TAKEN, "", _HASHES["conv-7f3a"]),
        ("header:x-session-id", CarrierVerdict.OUTRANKED, "", _HASHES["1"]),
    ]


@pytest.mark.parametrize(
    ("identity", "name", "reason"),
    [
        (_headers(x_claude_code_agent_id="a"), "header:x-claude-code-agent-id", "agent-without-session"),
        (Identity(body={"metadata.user_id": "user-4711"}), "body:metadata.user_id", "names-no-session"),
        (_headers(baggage="session.id=%ff"), "baggage:session.id", "malformed"),
        (_headers(x_session_id="MTAuMC4wLjc6ODAwMA=="), "header:x-session-id", "endpoint-token"),
        (_headers(thread_id=" "), "header:thread-id", "blank"),
    ],
)
def test_explain_gives_the_reason_why_a_value_is_unusable(identity: Identity, name: str, reason: str) -> None:
    traces = explain(Request(Phase.PREFILL, identity=identity), _POLICY).carriers
    assert [(t.name, t.reason) for t in traces if t.verdict is CarrierVerdict.UNUSABLE] == [(name, reason)]


def test_explain_shows_agent_context_for_affinity_only_as_unusable() -> None:
    policy = compile_yaml("identity: {agent_context: affinity-only}")
    traces = explain(
        Request(Phase.PREFILL, identity=Identity(agent_context=AgentContext("a"))), policy
    ).carriers
    assert (traces[1].verdict, traces[1].reason) == (CarrierVerdict.UNUSABLE, "affinity-only")


@pytest.mark.parametrize(
    "value",
    ["[2001:db8::1]:8000", "10.0.0.7:8000"],
)
def test_header_with_a_workers_address_in_base64_names_no_conversation(value: str) -> None:
    """All conversations of that worker share it. In clear, or in the body, it is an id like any other."""
    encoded = b64encode(value.encode()).decode()
    decisions = [
        decide(Request(Phase.PREFILL, identity=identity), _POLICY).source
        for identity in (
            _headers(x_session_id=encoded),
            _headers(x_session_id=value),
            Identity(body={"session_id": encoded}),
        )
    ]
    assert decisions == [IdentitySource.NONE, IdentitySource.HEADER, IdentitySource.BODY]
