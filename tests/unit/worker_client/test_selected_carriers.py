"""Which carriers of a request are sent: those that the policy reads, within the contract's 64 KiB."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_hints.limits import MAX_CARRIER_BYTES
from routing_hints.v1 import types_pb2
from tests.support.builders import ENGINE
from worker_client import _codec
from worker_client._model import ClientPolicy
from worker_client._request import AgentContext, RequestFacts, SessionControl
from worker_client._selected_carriers import select_carriers

DROPPED = "carriers-over-limit-dropped"
NAMES = tuple(f"carrier-{number}" for number in range(12))
POLICY = ClientPolicy(
    headers=NAMES[:6],
    per_request_headers=NAMES[6:8],
    metadata=NAMES[:4],
    body=NAMES[:4],
    annotations=("first:", "second:"),
)
SLACK_BYTES = 2_048
"""More than the client overestimates the few entries here by."""


def encode(facts: RequestFacts, policy: ClientPolicy = POLICY) -> types_pb2.Identity:
    """The identity as it is sent, structured carriers included."""
    return _codec.encode_request(facts, policy, ENGINE).identity


def encode_all(facts: RequestFacts) -> types_pb2.Identity:
    """The identity as it would be sent if there were no limit."""
    agent, control = facts.agent_context, facts.session_control
    return types_pb2.Identity(
        conversation_id=facts.conversation_id,
        agent_context=agent
        and types_pb2.AgentContext(
            session_id=agent.session_id,
            parent_session_id=agent.parent_session_id,
            session_final=agent.session_final,
            trajectory_id=agent.trajectory_id,
            parent_trajectory_id=agent.parent_trajectory_id,
        ),
        session_control=control
        and types_pb2.SessionControl(
            session_id=control.session_id, action=control.action, timeout=control.timeout
        ),
        headers={name: value for name, value in facts.headers.items() if value and name in NAMES[:8]},
        metadata={name: value for name, value in facts.metadata.items() if value and name in NAMES[:4]},
        body={name: value for name, value in facts.body.items() if value and name in NAMES[:4]},
        annotations=[
            next(entry for entry in facts.annotations if entry.startswith(prefix))
            for prefix in POLICY.annotations
            if any(entry.startswith(prefix) for entry in facts.annotations)
        ],
    )


def list_lengths(identity: types_pb2.Identity) -> list[int]:
    """The length of every entry that may be dropped by itself."""
    fields = (identity.headers, identity.metadata, identity.body)
    pairs = [len((name + value).encode()) for field in fields for name, value in field.items()]
    return pairs + [len(entry.encode()) for entry in identity.annotations]


def keep_structured(identity: types_pb2.Identity) -> types_pb2.Identity:
    kept = types_pb2.Identity()
    kept.CopyFrom(identity)
    for field in ("headers", "metadata", "body", "annotations"):
        kept.ClearField(field)
    return kept


@st.composite
def values(draw: st.DrawFn) -> str:
    """Text of up to 16,384 bytes, the longest that is read; long and short ones are frequent."""
    letter = draw(st.sampled_from("aé😀"))
    size_bytes = draw(st.one_of(st.integers(0, 300), st.integers(0, 16_384), st.integers(15_000, 16_384)))
    return letter * (size_bytes // len(letter.encode()))


some_values = st.dictionaries(st.sampled_from(NAMES), values(), max_size=5)
any_facts = st.builds(
    RequestFacts,
    conversation_id=values(),
    agent_context=st.none()
    | st.builds(AgentContext, values(), values(), st.none() | st.booleans(), values(), values()),
    session_control=st.none()
    | st.builds(SessionControl, values(), st.sampled_from(["", "open", "x" * 256]), st.integers(0, 2**63)),
    headers=some_values,
    metadata=some_values,
    body=some_values,
    annotations=st.lists(
        st.builds(str.__add__, st.sampled_from(["first:", "second:", "third:"]), values()), max_size=4
    ).map(tuple),
)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PATIENT
@given(any_facts)
def test_whatever_a_request_holds_its_identity_stays_within_the_limit(facts: RequestFacts) -> None:
    assert encode(facts).ByteSize() <= MAX_CARRIER_BYTES


@PATIENT
@given(any_facts)
def test_there_is_a_notice_exactly_where_something_is_dropped(facts: RequestFacts) -> None:
    everything = encode_all(facts)
    sent = encode(facts)
    assert (DROPPED in facts.notices) is (sent != everything)
    if everything.ByteSize() <= MAX_CARRIER_BYTES - SLACK_BYTES:
        assert facts.notices == []


@PATIENT
@given(any_facts)
def test_structured_carriers_are_kept_as_long_as_they_fit(facts: RequestFacts) -> None:
    everything = keep_structured(encode_all(facts))
    sent = keep_structured(encode(facts))
    if everything.ByteSize() <= MAX_CARRIER_BYTES - SLACK_BYTES:
        assert sent == everything
    assert sent.conversation_id == everything.conversation_id
    for field in ("session_id", "trajectory_id"):
        assert getattr(sent.agent_context, field) == getattr(everything.agent_context, field)


@PATIENT
@given(any_facts)
def test_the_longest_entries_are_dropped_first(facts: RequestFacts) -> None:
    """Names of conversations are short."""
    everything = list_lengths(encode_all(facts))
    sent = list_lengths(encode(facts))
    dropped = list(everything)
    for length in sent:
        dropped.remove(length)
    assert not sent or not dropped or max(sent) <= min(dropped) + SLACK_BYTES


def test_a_short_name_is_kept_beside_any_number_of_long_values() -> None:
    long = dict.fromkeys(NAMES[:5], "v" * 16_384)
    facts = RequestFacts(headers={**long, NAMES[5]: "conversation"})
    sent = encode(facts)
    assert sent.headers[NAMES[5]] == "conversation"
    assert facts.notices == [DROPPED]


LONG = "i" * 16_384


def test_parents_are_dropped_before_what_names_the_conversation() -> None:
    """A parent only says where to place."""
    agent = AgentContext(LONG, LONG, None, LONG, LONG)
    sent = encode(
        RequestFacts(conversation_id=LONG, agent_context=agent, session_control=SessionControl("s"))
    )
    assert (sent.conversation_id, sent.agent_context.session_id) == (LONG, LONG)
    assert sent.agent_context == types_pb2.AgentContext(session_id=LONG, trajectory_id=LONG)
    assert sent.session_control.session_id == "s"


def test_session_control_is_dropped_before_the_other_structured_carriers() -> None:
    """It is the last of them in the default order."""
    agent = AgentContext(LONG, trajectory_id=LONG)
    control = SessionControl(LONG, "x" * 256)
    sent = encode(RequestFacts(conversation_id=LONG, agent_context=agent, session_control=control))
    assert (sent.conversation_id, sent.agent_context.session_id) == (LONG, LONG)
    assert not sent.HasField("session_control")


def test_only_the_first_annotation_of_a_prefix_is_sent() -> None:
    """The sidecar reads no other."""
    facts = RequestFacts(annotations=("second:b", "first:a", "other", "first:c"))
    assert (list(encode(facts).annotations), facts.notices) == (["first:a", "second:b"], [])


def test_only_what_the_policy_reads_is_sent() -> None:
    facts = RequestFacts(
        headers={"a": "1", "b": "2", "c": "3"},
        metadata={"a": "1", "b": "2"},
        body={"a": {"b": "1"}, "c": "2"},
        annotations=("a:1", "b:2"),
    )
    policy = ClientPolicy(
        headers=("a",), per_request_headers=("b",), metadata=("a",), body=("a.b",), annotations=("a:",)
    )
    assert select_carriers(facts, policy) == (
        (("a", "1"),),
        (("b", "2"),),
        (("a", "1"),),
        (("a.b", "1"),),
        ("a:1",),
    )
    assert encode(facts, ClientPolicy()) == types_pb2.Identity()
