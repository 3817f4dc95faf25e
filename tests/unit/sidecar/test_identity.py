"""Which carrier wins, and what Explain says of the others."""

from __future__ import annotations

from base64 import b64encode

import pytest

from sidecar.decision.decide import decide, explain
from sidecar.identity.resolution import resolve_claim
from sidecar.model import (
    AgentContext,
    CarrierVerdict,
    Identity,
    IdentitySource,
    Phase,
    Query,
    SessionControl,
)
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy

_POLICY = compile_policy(parse_policy(""))
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
def test_each_carrier_names_the_conversation(identity: Identity, source: IdentitySource, detail: str) -> None:
    """A carrier that is alone wins and is named."""
    answer = decide(Query(Phase.PREFILL, identity=identity), _POLICY)
    assert (answer.source, answer.source_detail) == (source, detail)
    assert answer.conversation_hash == _HASHES["conv-7f3a"]


def test_without_a_carrier_there_is_no_identity() -> None:
    """A request without carriers has neither source nor hash."""
    answer = decide(Query(Phase.PREFILL, identity=_headers(x_request_id="1")), _POLICY)
    assert (answer.source, answer.source_detail, answer.conversation_hash) == (IdentitySource.NONE, "", "")


def test_the_first_carrier_of_the_order_wins() -> None:
    """Taking the winner away hands the win to the next one of the default order."""
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
        won.append(decide(Query(Phase.DECODE, identity=identity), _POLICY).source_detail)
    assert won == ["conversation_id", "agent_context.session_id", "session_control.session_id", _HEADER]


def test_the_policy_sets_order_and_choice_of_carriers() -> None:
    """A carrier that the order leaves out is not read, and the order decides."""
    policy = compile_policy(parse_policy("identity: {order: ['header:x-session-id', session_control]}"))
    identity = Identity(
        conversation_id="a", session_control=SessionControl("b"), headers={"x-session-id": "conv-7f3a"}
    )
    answer = decide(Query(Phase.PREFILL, identity=identity), policy)
    assert (answer.source_detail, answer.conversation_hash) == ("header:x-session-id", _HASHES["conv-7f3a"])


@pytest.mark.parametrize(
    "value", ["", " ", "\t\n", "null", "None", "UNDEFINED", "n/a", "N/A", "unknown", "-", " - "]
)
def test_unusable_values_are_passed_over(value: str) -> None:
    """A blank or a placeholder gives way to the next carrier."""
    answer = decide(
        Query(Phase.PREFILL, identity=_headers(x_dynamo_session_id=value, x_session_id="conv-7f3a")), _POLICY
    )
    assert (answer.source_detail, answer.conversation_hash) == ("header:x-session-id", _HASHES["conv-7f3a"])


@pytest.mark.parametrize("value", ["nullable", "--", "0", "unknown-1", "n / a"])
def test_values_like_placeholders_are_usable(value: str) -> None:
    """Only the whole placeholder is one."""
    answer = decide(Query(Phase.PREFILL, identity=Identity(conversation_id=value)), _POLICY)
    assert answer.source is IdentitySource.CONVERSATION_ID


def test_an_unusable_trajectory_does_not_fall_back_to_the_run() -> None:
    """The run names a tree of agents and is never a conversation."""
    identity = Identity(agent_context=AgentContext(session_id="run", trajectory_id="null"))
    assert decide(Query(Phase.PREFILL, identity=identity), _POLICY).source is IdentitySource.NONE


def test_values_are_trimmed() -> None:
    """White space around a value does not count."""
    answer = decide(Query(Phase.PREFILL, identity=Identity(conversation_id=" \tconv-7f3a\u2003")), _POLICY)
    assert answer.conversation_hash == _HASHES["conv-7f3a"]


def test_the_trimmed_characters_are_those_of_the_contract() -> None:
    """The document lists exactly the characters that trimming takes."""
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
def test_the_last_request_is_recognised(identity: Identity) -> None:
    """Each way of saying that a conversation ends is read, the header beside any carrier."""
    assert decide(Query(Phase.PREFILL, identity=identity), _POLICY).session_final


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
def test_other_requests_are_not_the_last(identity: Identity) -> None:
    """Anything else does not end a conversation."""
    assert not decide(Query(Phase.PREFILL, identity=identity), _POLICY).session_final


def test_an_empty_header_is_there_and_unusable() -> None:
    """A header without a value is told apart from one that did not come."""
    traces = explain(Query(Phase.PREFILL, identity=_headers(x_session_id="")), _POLICY).carriers
    seen = {trace.name: (trace.verdict, trace.reason) for trace in traces}
    assert seen[_HEADER] == (CarrierVerdict.ABSENT, "")
    assert seen["header:x-session-id"] == (CarrierVerdict.UNUSABLE, "blank")


@pytest.mark.parametrize("parent_id", ["a", " a ", "", "  ", "Null"])
def test_some_parents_are_none(parent_id: str) -> None:
    """A claim's parent is never the session itself, a blank or a placeholder."""
    identity = Identity(agent_context=AgentContext("a", parent_id))
    claim = resolve_claim(_POLICY, identity, {})
    assert claim is not None
    assert claim.parent_id == ""


def test_explain_shows_every_carrier() -> None:
    """Absent, unusable, taken and outranked carriers are told apart, in the policy's order."""
    identity = Identity(
        agent_context=AgentContext("  "),
        session_control=SessionControl("n/a"),
        headers={"X-Dynamo-Session-Id": "conv-7f3a", "x-session-id": "1"},
    )
    policy = compile_policy(
        parse_policy(
            "identity: {order: [conversation_id, agent_context, session_control,"
            " 'header:x-dynamo-session-id', 'header:x-session-id']}"
        )
    )
    traces = explain(Query(Phase.PREFILL, identity=identity), policy).carriers
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
def test_explain_says_why_a_value_names_nothing(identity: Identity, name: str, reason: str) -> None:
    """The reason is the carrier's own where it knows more than that the value is blank."""
    traces = explain(Query(Phase.PREFILL, identity=identity), _POLICY).carriers
    assert [(t.name, t.reason) for t in traces if t.verdict is CarrierVerdict.UNUSABLE] == [(name, reason)]


def test_a_carrier_for_affinity_only_is_refused_by_name() -> None:
    """Explain shows that agent_context came and why it names nothing."""
    policy = compile_policy(parse_policy("identity: {agent_context: affinity-only}"))
    traces = explain(
        Query(Phase.PREFILL, identity=Identity(agent_context=AgentContext("a"))), policy
    ).carriers
    assert (traces[1].verdict, traces[1].reason) == (CarrierVerdict.UNUSABLE, "affinity-only")


@pytest.mark.parametrize(
    "value",
    ["[2001:db8::1]:8000", "10.0.0.7:8000"],
)
def test_a_workers_address_is_no_conversation(value: str) -> None:
    """IPv4 and IPv6, in base64; the same text in clear, or in a body, is an id like any other."""
    encoded = b64encode(value.encode()).decode()
    answers = [
        decide(Query(Phase.PREFILL, identity=identity), _POLICY).source
        for identity in (
            _headers(x_session_id=encoded),
            _headers(x_session_id=value),
            Identity(body={"session_id": encoded}),
        )
    ]
    assert answers == [IdentitySource.NONE, IdentitySource.HEADER, IdentitySource.BODY]
