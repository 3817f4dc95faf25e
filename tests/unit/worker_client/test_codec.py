"""Between the client's values and the contract's messages: also those of newer and older sidecars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import IdScope
from tests.support.builders import ENGINE, PLACE, WITHHOLD, build_decision, build_pending, build_profile
from tests.support.strategies import Awkward
from worker_client import (
    AdpRouter,
    Decision,
    IdentitySource,
    Origin,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
)
from worker_client._codec import (
    decode_decision,
    decode_policy,
    encode_engine,
    encode_request,
    fill_item,
    name_instance,
)
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest
from worker_client._request import AgentContext, RequestFacts, SessionControl

CONVERSATION_ID, AGENT_CONTEXT, SESSION_CONTROL = (
    IdentitySource.CONVERSATION_ID,
    IdentitySource.AGENT_CONTEXT,
    IdentitySource.SESSION_CONTROL,
)


def encode(facts: RequestFacts, policy: ClientPolicy | None = None) -> service_pb2.EnrichRequest:
    return encode_request(facts, policy or ClientPolicy(), ENGINE)


def encode_for_stream(facts: RequestFacts, known_rank: int | None = None) -> service_pb2.EnrichRequest:
    pending = build_pending(facts)
    pending.known_rank = known_rank
    return encode_item(pending).request


def encode_item(pending: PendingRequest) -> service_pb2.EnrichItem:
    item = service_pb2.EnrichItem()
    fill_item(item, pending)
    return item


def test_a_decision_is_read_field_by_field() -> None:
    response = service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(conversation_id="c", affinity_key="p", dp_rank=0),
        rank_directive=types_pb2.RANK_DIRECTIVE_PLACE,
        source=types_pb2.IDENTITY_SOURCE_HEADER,
        source_detail="header:x-session-id",
        placement=types_pb2.PLACEMENT_STATE_NEW,
        decision_id="d",
        conversation_hash="h",
        policy_revision="r",
        notices=["n"],
        reusable=True,
    )
    assert decode_decision(response) == Decision(
        RankDirective.PLACE,
        Origin.SIDECAR,
        "c",
        "p",
        0,
        IdentitySource.HEADER,
        "header:x-session-id",
        PlacementState.NEW,
        "d",
        "h",
        "r",
        ("n",),
        reusable=True,
    )


def test_a_decision_is_not_reusable_unless_the_sidecar_says_so() -> None:
    """An older sidecar, which books no load of requests that did not wait, says nothing."""
    assert not decode_decision(service_pb2.EnrichResponse()).reusable


@pytest.mark.parametrize("directive", [0, 4, 99])
def test_an_unknown_directive_is_forward(directive: int) -> None:
    """A newer sidecar may have more of them; a rank that comes with one is not used."""
    response = service_pb2.EnrichResponse(hints=types_pb2.RoutingHints(dp_rank=1))
    response.rank_directive = directive  # type: ignore[assignment]
    decision = decode_decision(response)
    assert (decision.directive, decision.dp_rank) == (RankDirective.FORWARD, None)


def test_an_unknown_source_and_placement_state_are_none() -> None:
    response = service_pb2.EnrichResponse()
    response.source = response.placement = 99  # type: ignore[assignment]
    decision = decode_decision(response)
    assert (decision.source, decision.placement) == (IdentitySource.NONE, PlacementState.NONE)


def test_an_empty_id_is_no_id() -> None:
    """The engine would refuse it."""
    assert decode_decision(
        service_pb2.EnrichResponse(hints=types_pb2.RoutingHints(conversation_id=""))
    ) == Decision(RankDirective.FORWARD, Origin.SIDECAR)


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
def test_a_carrier_that_can_not_be_resolved_alone_ends_the_list(
    numbers: list[int], sources: tuple[IdentitySource, ...]
) -> None:
    """What comes after it would be outranked by it."""
    assert decode_policy(service_pb2.ClientPolicy(local_sources=numbers)).local_sources == sources


@pytest.mark.parametrize(("number", "scope"), [(0, IdScope.WEAK), (1, IdScope.OFF), (99, IdScope.ALL)])
def test_an_unknown_scope_is_the_strictest(number: int, scope: IdScope) -> None:
    """An id that might be derived is not resolved alone."""
    policy = service_pb2.ClientPolicy()
    policy.scope = number  # type: ignore[assignment]
    assert decode_policy(policy).scope is scope


async def test_a_request_has_the_fields_that_were_read_and_no_others() -> None:
    empty = encode_for_stream(RequestFacts(phase=Phase.PREFILL))
    assert empty == service_pb2.EnrichRequest(
        phase=types_pb2.PHASE_PREFILL,
        kind=types_pb2.REQUEST_KIND_NORMAL,
        identity=types_pb2.Identity(),
        engine_instance="engine-1",
    )
    assert not empty.HasField("known_rank")
    assert not empty.hints.HasField("dp_rank")
    assert not empty.identity.HasField("agent_context")
    assert not empty.identity.HasField("session_control")
    facts = RequestFacts(
        phase=Phase.DECODE,
        request_id="r",
        agent_context=AgentContext("s", "p", False, "t", "q"),
        session_control=SessionControl("sc", "open", 300),
        router_rank=0,
    )
    full = encode_for_stream(facts, known_rank=0)
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
    assert full.hints == types_pb2.RoutingHints(dp_rank=0)
    assert full.HasField("known_rank")


async def test_a_request_of_the_stream_names_its_engine_and_one_without_a_stream_has_it() -> None:
    facts = RequestFacts(phase=Phase.PREFILL)
    on_stream, alone = encode_for_stream(facts), encode(facts)
    assert (on_stream.engine_instance, on_stream.HasField("engine")) == ("engine-1", False)
    assert (alone.engine_instance, alone.engine) == ("", encode_engine(ENGINE))


@pytest.mark.parametrize("rank", [0, 3])
async def test_an_applied_rank_is_sent_with_the_decision_that_it_is_of(rank: int) -> None:
    applied = build_decision(PLACE, "c", dp_rank=rank, decision_id="run-1")
    message = encode_item(build_pending(applied=applied)).applied
    assert (message.directive, message.decision_id) == (types_pb2.RANK_DIRECTIVE_PLACE, "run-1")
    assert (message.HasField("dp_rank"), message.dp_rank) == (True, rank)


async def test_a_decision_without_a_rank_is_applied_without_one() -> None:
    applied = build_decision(WITHHOLD, "c", decision_id="run-1")
    message = encode_item(build_pending(applied=applied)).applied
    assert message == service_pb2.AppliedDecision(
        directive=types_pb2.RANK_DIRECTIVE_WITHHOLD, decision_id="run-1"
    )
    assert not message.HasField("dp_rank")


async def test_a_request_that_waits_has_nothing_applied() -> None:
    assert not encode_item(build_pending()).HasField("applied")


def test_what_reuse_goes_by_is_read_from_the_policy() -> None:
    message = service_pb2.ClientPolicy(identity_baggage=["session.id"], reuse_generation=7)
    message.reuse_max_age.FromMilliseconds(1_500)
    message.valid_until.FromSeconds(1_700_000_000)
    policy = decode_policy(message)
    assert (policy.baggage, policy.generation) == (("session.id",), 7)
    assert (policy.reuse_max_age_s, policy.valid_until_s) == (1.5, 1_700_000_000.0)


def test_a_policy_without_them_ends_never_and_lets_nothing_be_reused() -> None:
    """As an older sidecar sends it."""
    policy = decode_policy(service_pb2.ClientPolicy())
    assert (policy.reuse_max_age_s, policy.valid_until_s) == (0.0, None)


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("session.id=s1,trace=17", {"baggage": "session.id=s1"}),
        ("trace=17, session.id = s1;p=1 ,user=u", {"baggage": "session.id = s1;p=1,user=u"}),
        ("trace=17", {}),
        ("", {}),
    ],
)
def test_only_the_members_of_baggage_that_the_policy_names_are_sent(
    header: str, sent: dict[str, str]
) -> None:
    facts = RequestFacts(headers={"baggage": header})
    policy = ClientPolicy(baggage=("session.id", "user"))
    assert dict(encode(facts, policy).identity.headers) == sent


def test_per_request_headers_are_sent_beside_those_that_name_the_conversation() -> None:
    policy = decode_policy(
        service_pb2.ClientPolicy(
            identity_headers=["thread-id"],
            per_request_headers=["x-codex-turn-metadata", "x-dynamo-session-final"],
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
def test_a_field_of_the_body_is_found_in_either_form(
    body: dict[str, Any], sent: dict[str, str], notices: list[str]
) -> None:
    """A field that is an object holds its text further down, which is nothing to note."""
    facts = RequestFacts(body=body)
    policy = ClientPolicy(body=("conversation", "conversation.id", "metadata.user_id"))
    assert (dict(encode(facts, policy).identity.body), facts.notices) == (sent, notices)


def test_a_value_that_can_not_be_sent_is_left_out() -> None:
    """One bad value must not end everybody's stream."""
    policy = ClientPolicy(metadata=("a", "b", "c"), body=("x.y",))
    facts = RequestFacts(metadata={"a": Awkward(), "b": "lone \ud800", "c": b"fine"}, body={"x": Awkward()})
    message = encode(facts, policy)
    assert (dict(message.identity.metadata), dict(message.identity.body)) == ({"c": "fine"}, {})


def test_an_engine_profile_is_sent_within_the_contracts_range() -> None:
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


@pytest.mark.parametrize("instance_id", ["engine-1", "é" * 128], ids=ascii)
def test_an_instance_id_that_the_contract_can_carry_is_sent_as_it_is(instance_id: str) -> None:
    assert name_instance(instance_id) == instance_id


@pytest.mark.parametrize("instance_id", ["", "e" * 257, "é" * 129, "lone \ud800", "\udfff" * 2], ids=range(5))
def test_an_instance_id_that_the_contract_can_not_carry_is_sent_as_its_hash(instance_id: str) -> None:
    """Empty would stand for an engine of which nothing is known; the others would end everybody's stream."""
    name = name_instance(instance_id)
    assert (len(name), set(name) <= set("0123456789abcdef")) == (32, True)
    assert name == name_instance(instance_id)
    assert encode_engine(build_profile(instance_id=instance_id)).instance_id == name
    assert name != name_instance(instance_id + "x")
