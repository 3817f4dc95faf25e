"""Between the client's values and the contract's messages: also those of newer and older sidecars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import build_profile
from tests.support.strategies import Awkward
from worker_client import (
    AdpRouter,
    Answer,
    Decision,
    IdentitySource,
    Origin,
    Phase,
    RankDirective,
    RankSource,
)
from worker_client._codec import decode_answer, decode_policy, encode_engine, fill_request
from worker_client._model import ClientPolicy, IdScope
from worker_client._request import AgentContext, RequestFacts, SessionControl
from worker_client._selected_carriers import pick_carriers

CONVERSATION_ID, AGENT_CONTEXT, SESSION_CONTROL = (
    IdentitySource.CONVERSATION_ID,
    IdentitySource.AGENT_CONTEXT,
    IdentitySource.SESSION_CONTROL,
)


def encode(
    facts: RequestFacts, policy: ClientPolicy | None = None, **ranks: Any
) -> service_pb2.EnrichRequest:
    """The question about a request."""
    message = service_pb2.EnrichRequest()
    fill_request(
        message,
        facts,
        pick_carriers(facts, policy or ClientPolicy()),
        engine_pb=encode_engine(build_profile()),
        **{"router_rank": None, "known_rank": None, **ranks},
    )
    return message


def test_answer_is_read_field_by_field() -> None:
    """What the sidecar says is what the plan has."""
    response = service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id="c", affinity_key="p", dp_rank=0),
        rank_directive=types_pb2.RANK_DIRECTIVE_PLACE,
        source=types_pb2.IDENTITY_SOURCE_HEADER,
        source_detail="header:x-session-id",
        decision=types_pb2.DECISION_NEW,
        decision_id="d",
        conversation_hash="h",
        policy_revision="r",
        notices=["n"],
    )
    assert decode_answer(response) == Answer(
        RankDirective.PLACE,
        Origin.SIDECAR,
        "c",
        "p",
        0,
        IdentitySource.HEADER,
        "header:x-session-id",
        Decision.NEW,
        "d",
        "h",
        "r",
        ("n",),
    )


@pytest.mark.parametrize("directive", [0, 4, 99])
def test_unknown_directive_is_forward(directive: int) -> None:
    """A newer sidecar may know more; a rank that comes with it is not taken."""
    response = service_pb2.EnrichResponse(hints=types_pb2.RoutingHints(dp_rank=1))
    response.rank_directive = directive  # type: ignore[assignment]
    answer = decode_answer(response)
    assert (answer.directive, answer.dp_rank) == (RankDirective.FORWARD, None)


def test_unknown_source_and_decision_are_none() -> None:
    """Nor do other numbers break anything."""
    response = service_pb2.EnrichResponse()
    response.source = response.decision = 99  # type: ignore[assignment]
    answer = decode_answer(response)
    assert (answer.source, answer.decision) == (IdentitySource.NONE, Decision.NONE)


def test_empty_id_is_no_id() -> None:
    """An empty one would be refused by the engine."""
    assert decode_answer(
        service_pb2.EnrichResponse(hints=types_pb2.RoutingHints(conversation_id=""))
    ) == Answer(RankDirective.FORWARD, Origin.SIDECAR)


@pytest.mark.parametrize(
    ("numbers", "sources"),
    [
        ([1, 2, 3], (CONVERSATION_ID, AGENT_CONTEXT, SESSION_CONTROL)),
        ([3, 2], (SESSION_CONTROL, AGENT_CONTEXT)),
        ([2, 4, 3], (AGENT_CONTEXT,)),
        ([2, 99, 3], (AGENT_CONTEXT,)),
        ([], ()),
    ],
)
def test_carrier_that_can_not_be_resolved_alone_ends_the_list(
    numbers: list[int], sources: tuple[IdentitySource, ...]
) -> None:
    """What comes after it would be outranked by it."""
    assert decode_policy(service_pb2.ClientPolicy(local_sources=numbers)).local_sources == sources


@pytest.mark.parametrize(("number", "scope"), [(0, IdScope.WEAK), (1, IdScope.OFF), (99, IdScope.ALL)])
def test_unknown_scope_is_the_strictest(number: int, scope: IdScope) -> None:
    """An id that might be derived is not resolved alone."""
    policy = service_pb2.ClientPolicy()
    policy.scope = number  # type: ignore[assignment]
    assert decode_policy(policy).scope is scope


def test_question_carries_what_was_read() -> None:
    """Absent stays absent: neither rank nor carrier is made up."""
    empty = encode(RequestFacts(phase=Phase.PREFILL))
    assert not empty.HasField("known_rank")
    assert not empty.hints.HasField("dp_rank")
    assert not empty.identity.HasField("agent_context")
    assert not empty.identity.HasField("session_control")
    facts = RequestFacts(
        phase=Phase.DECODE,
        request_id="r",
        agent_context=AgentContext("s", "p", False, "t", "q"),
        session_control=SessionControl("sc", "open", 300),
        router_prefill_rank=0,
    )
    full = encode(facts, router_rank=0, known_rank=0)
    assert (full.phase, full.request_id) == (types_pb2.PHASE_DECODE, "r")
    assert full.identity == types_pb2.Identity(
        agent_context=types_pb2.AgentContext(
            session_id="s",
            parent_session_id="p",
            session_final=False,
            trajectory_id="t",
            parent_trajectory_id="q",
        ),
        session_control=types_pb2.SessionControl(session_id="sc", action="open", timeout=300),
    )
    assert full.hints == types_pb2.RoutingHints(dp_rank=0, prefill_dp_rank=0)
    assert full.HasField("known_rank")


def test_passing_headers_are_sent() -> None:
    """What the policy wants to hear of one request goes out beside what names the conversation."""
    policy = decode_policy(
        service_pb2.ClientPolicy(
            identity_headers=["thread-id"],
            passing_headers=["x-codex-turn-metadata", "x-dynamo-session-final"],
        )
    )
    headers = {"thread-id": "t", "x-codex-turn-metadata": "{}", "x-other": "o"}
    assert dict(encode(RequestFacts(headers=headers), policy).identity.headers) == {
        "thread-id": "t",
        "x-codex-turn-metadata": "{}",
    }


@pytest.mark.parametrize(
    ("body", "sent", "notices"),
    [
        ({"conversation": "conv_1"}, {"conversation": "conv_1"}, []),
        ({"conversation": {"id": "conv_1"}}, {"conversation.id": "conv_1"}, []),
        ({"conversation": {}}, {}, []),
        ({"conversation": ["conv_1"]}, {}, ["value-not-text-dropped"]),
        ({"metadata": {"user_id": "u", "other": {}}}, {"metadata.user_id": "u"}, []),
        ({"metadata": "text"}, {}, []),
    ],
)
def test_fields_of_the_body_are_found_in_either_form(
    body: dict[str, Any], sent: dict[str, str], notices: list[str]
) -> None:
    """A field that is an object holds its text further down, and that is nothing to note."""
    facts = RequestFacts(body=body)
    policy = ClientPolicy(body=("conversation", "conversation.id", "metadata.user_id"))
    assert (dict(encode(facts, policy).identity.body), facts.notices) == (sent, notices)


def test_odd_metadata_is_left_out() -> None:
    """One odd value must not end everybody's stream."""
    policy = ClientPolicy(metadata=("a", "b", "c"), body=("x.y",))
    facts = RequestFacts(metadata={"a": Awkward(), "b": "lone \ud800", "c": b"fine"}, body={"x": Awkward()})
    message = encode(facts, policy)
    assert (dict(message.identity.metadata), dict(message.identity.body)) == ({"c": "fine"}, {})


def test_engine_profile_is_sent_within_the_contracts_range() -> None:
    """A version string may be anything."""
    profile = build_profile(version="v" * 1_000, rank_source=RankSource.ROUTER, records_first_rank=True)
    profile = replace(profile, max_active_requests=10**12)
    assert encode_engine(profile) == types_pb2.EngineProfile(
        instance_id="engine-1",
        dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
        adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
        rank_source=types_pb2.RANK_SOURCE_ROUTER,
        records_first_rank=True,
        dp_size=4,
        version="v" * 64,
        max_active_requests=2**32 - 1,
    )
    assert encode_engine(build_profile(adp_router=AdpRouter.UNKNOWN, dp_size=10**9)).dp_size == 65_536
