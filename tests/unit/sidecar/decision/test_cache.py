"""Remembered decisions: the same as decided anew, told apart by all that they depend on, and bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import RankDirective
from sidecar.decision import cache as module
from sidecar.decision.cache import DecisionCache
from sidecar.decision.decide import decide
from sidecar.model import Decision
from sidecar.policy.compiled import CompiledPolicy
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import NO_ENGINES, decode_request
from sidecar.wire.response_codec import encode_decision, serialize_decision
from tests.support.messages import CONVERSATION, PINNING_ENGINE, make_request
from tests.support.policies import compile_yaml

_POLICY = compile_yaml()
_HALF = compile_yaml("operational: {rollout_percent: 50}")
_NONE: frozenset[str] = frozenset()
_SESSION_HEADER = frozenset({"header:x-session-id"})
_ODD_REQUESTS = 200


def _make_pinned(session_id: str = CONVERSATION, **fields: Any) -> service_pb2.EnrichRequest:
    return make_request(session_id, **{"engine": PINNING_ENGINE, **fields})


def _make_registry(profile: types_pb2.EngineProfile, instance_id: str = "e") -> EngineRegistry:
    registered = types_pb2.EngineProfile()
    registered.CopyFrom(profile)
    registered.instance_id = instance_id
    engines = EngineRegistry()
    engines.register(registered)
    return engines


class CacheHarness:
    """A cache that counts how often it had to decide."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decisions = 0
        self._cache = DecisionCache(serialize_decision)
        monkeypatch.setattr(module, "decide", self._decide)

    def _decide(self, *arguments: Any) -> Decision:
        self.decisions += 1
        return decide(*arguments)

    def decide(
        self,
        message: service_pb2.EnrichRequest,
        policy: CompiledPolicy = _POLICY,
        suspended: Set[str] = _NONE,
        engines: EngineRegistry = NO_ENGINES,
    ) -> Decision:
        """Decides about a request as it came, by default under the embedded policy."""
        request, identity = decode_request(message, engines)
        return self._cache.decide(request, identity, policy, suspended).decision


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> CacheHarness:
    return CacheHarness(monkeypatch)


_ENGINES = st.builds(
    types_pb2.EngineProfile,
    instance_id=st.sampled_from(["", "start-1"]),
    dialect=st.sampled_from([0, 1, 3, 9]),
    adp_router=st.sampled_from([0, 2, 3, 4]),
    rank_source=st.sampled_from([0, 1, 2, 3]),
    records_first_rank=st.booleans(),
    dp_size=st.just(4),
    subagent_affinity=st.booleans(),
    wants_conversation_id=st.booleans(),
)
_IDS = st.sampled_from(["", "1", CONVERSATION, "none", "e\u0301"])
_IDENTITIES = st.builds(
    types_pb2.Identity,
    conversation_id=st.sampled_from(["", "", "conv-1"]),
    agent_context=st.none()
    | st.builds(types_pb2.AgentContext, session_id=_IDS, parent_session_id=_IDS, trajectory_id=_IDS),
    session_control=st.none() | st.builds(types_pb2.SessionControl, session_id=_IDS),
    headers=st.dictionaries(
        st.sampled_from(["x-session-id", "X-Session-ID", "x-tenant-id", "x-dynamo-session-final"]), _IDS
    ),
    metadata=st.dictionaries(st.just("conversation-id"), _IDS),
    annotations=st.lists(_IDS.map("conversation_id:{}".format), max_size=1),
    body=st.dictionaries(st.just("session_id"), _IDS),
)
_SUBJECTS = st.builds(
    service_pb2.EnrichRequest,
    phase=st.sampled_from([1, 2, 3, 9]),
    kind=st.sampled_from([0, 1, 2]),
    identity=st.none() | _IDENTITIES,
    hints=st.none() | st.builds(types_pb2.RoutingHints, dp_rank=st.sampled_from([None, 0])),
    engine=st.none() | _ENGINES,
    engine_instance=st.sampled_from(["", "e"]),
    tenant=st.sampled_from(["", "t"]),
)
# What does not decide, so that requests with one subject may differ in it.
_OWN_FIELDS = st.builds(
    service_pb2.EnrichRequest,
    request_id=st.sampled_from(["", "r-1", "r-2"]),
    worker_id=st.sampled_from(["", "w-1"]),
    model=st.sampled_from(["", "m"]),
    prompt_tokens=st.sampled_from([0, 7]),
    traceparent=st.sampled_from(["", "00-1"]),
    known_rank=st.none() | st.integers(0, 3),
)
_POLICIES = [
    compile_yaml(text)
    for text in (
        "",
        "operational: {mode: shadow}",
        "operational: {rollout_percent: 50}",
        "identity: {scope: all, subagents: both}",
    )
]
# One instance id on two streams, with another engine on each.
_STREAMS = [
    _make_registry(PINNING_ENGINE),
    _make_registry(types_pb2.EngineProfile(adp_router=types_pb2.ADP_ROUTER_DEFAULT, dp_size=4)),
]
_SUSPENDED = [_NONE, frozenset({"header:x-session-id", "conversation_id"})]


@given(
    subjects=st.lists(_SUBJECTS, min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            _OWN_FIELDS,
            st.none() | st.integers(0, 3),
            st.sampled_from(_POLICIES),
            st.sampled_from(_STREAMS),
            st.sampled_from(_SUSPENDED),
        ),
        min_size=2,
        max_size=12,
    ),
)
def test_decision_is_what_would_be_decided_anew(
    subjects: list[service_pb2.EnrichRequest], steps: list[tuple[Any, ...]]
) -> None:
    """Whatever was decided before, by whatever policy, and with whatever carriers suspended."""
    cache = DecisionCache(serialize_decision)
    for number, own_fields, router_rank, policy, engines, suspended in steps:
        message = service_pb2.EnrichRequest()
        message.CopyFrom(subjects[number % len(subjects)])
        message.MergeFrom(own_fields)
        if message.hints.HasField("dp_rank") and router_rank is not None:
            message.hints.dp_rank = router_rank
        request, identity = decode_request(message, engines)
        decision, serialized = cache.decide(request, identity, policy, suspended)
        assert decision == decide(request._replace(identity=identity.read()), policy, suspended)
        if decision.directive is RankDirective.PLACE:
            assert serialized == b""
        else:
            assert service_pb2.EnrichResponse.FromString(serialized) == encode_decision(decision)


def test_requests_that_differ_in_nothing_that_decides_are_decided_once(harness: CacheHarness) -> None:
    first = _make_pinned(
        request_id="r-1", worker_id="w-1", model="m-1", prompt_tokens=1, traceparent="00-1", known_rank=1
    )
    again = _make_pinned(
        request_id="r-2", worker_id="w-2", model="m-2", prompt_tokens=2, traceparent="00-2", known_rank=2
    )
    first.hints.dp_rank, again.hints.dp_rank = 1, 2
    assert harness.decide(first) is harness.decide(again)
    assert harness.decisions == 1


def test_another_policy_decides_anew(harness: CacheHarness) -> None:
    """So a reload takes effect with the next request of a remembered conversation."""
    assert harness.decide(_make_pinned()).conversation_id == CONVERSATION
    off = compile_yaml("operational: {mode: off}")
    assert harness.decide(_make_pinned(), off).conversation_id is None
    assert harness.decide(_make_pinned()).conversation_id == CONVERSATION


def test_suspended_carrier_decides_anew(harness: CacheHarness) -> None:
    """So it is suspended, and resumed, at once for remembered conversations, too."""
    assert harness.decide(_make_pinned()).conversation_id == CONVERSATION
    assert harness.decide(_make_pinned(), suspended=_SESSION_HEADER).conversation_id is None
    assert harness.decide(_make_pinned()).conversation_id == CONVERSATION


@pytest.mark.parametrize(("session_id", "suspended"), [("", _NONE), (CONVERSATION, _SESSION_HEADER)])
def test_requests_without_an_id_are_selected_one_by_one_during_a_rollout(
    harness: CacheHarness, session_id: str, suspended: Set[str]
) -> None:
    """The rollout goes by the request's own id, so no decision stands for another request."""
    requests = [_make_pinned(session_id, request_id=f"r-{number}") for number in range(64)]
    decisions = [harness.decide(message, _HALF, suspended) for message in requests]
    assert {"outside-rollout" in decision.notices for decision in decisions} == {True, False}


def test_conversation_is_decided_once_during_a_rollout(harness: CacheHarness) -> None:
    """The rollout goes by its id, the same with each request."""
    for number in range(3):
        harness.decide(_make_pinned(request_id=f"r-{number}"), _HALF)
    assert harness.decisions == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"known_rank": 4}, "known_rank"),
        ({"request_id": "r" * 257}, "request_id"),
        ({"hints": types_pb2.RoutingHints(dp_rank=4)}, "hints.dp_rank"),
    ],
)
def test_field_out_of_range_is_refused_for_a_remembered_subject_too(
    harness: CacheHarness, fields: dict[str, Any], path: str
) -> None:
    harness.decide(_make_pinned(hints=types_pb2.RoutingHints(dp_rank=3), known_rank=3))
    with pytest.raises(FieldError) as caught:
        harness.decide(_make_pinned(**fields))
    assert caught.value.field == path


def test_equal_requests_of_two_streams_are_decided_by_their_own_engines(harness: CacheHarness) -> None:
    """Although the workers chose one nonce."""
    message = make_request(engine_instance="e")
    pinning, balancing = _STREAMS
    assert harness.decide(message, engines=pinning).conversation_id == CONVERSATION
    assert harness.decide(message, engines=balancing).conversation_id is None
    assert harness.decide(make_request()).conversation_id is None


def test_subject_used_longest_ago_is_forgotten(
    harness: CacheHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    for session_id in ("kept", "forgotten", "kept", "new"):
        harness.decide(_make_pinned(session_id))
    assert harness.decisions == 3
    harness.decide(_make_pinned("kept"))
    assert harness.decisions == 3
    harness.decide(_make_pinned("forgotten"))
    assert harness.decisions == 4


def test_remembered_request_takes_little_more_than_its_bytes() -> None:
    """Decoded, its carriers would take twenty times the room, so they are not kept."""
    cache = DecisionCache(serialize_decision)
    tracemalloc.start()
    for number in range(_ODD_REQUESTS):
        message = _make_pinned(f"s-{number}")
        message.identity.annotations.extend(["\u0100"] * 240)
        cache.decide(*decode_request(message), _POLICY, _NONE)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes / _ODD_REQUESTS < 6_000


@pytest.mark.parametrize("fields", [{"session_id": "s" * 1_024}, {"tenant": "t" * 257}])
def test_long_request_is_decided_each_time(harness: CacheHarness, fields: dict[str, str]) -> None:
    """It would take much memory."""
    for _ in range(2):
        harness.decide(_make_pinned(**fields))
    assert harness.decisions == 2


def _identify(**fields: Any) -> dict[str, Any]:
    return {"engine": PINNING_ENGINE, "identity": types_pb2.Identity(**fields)}


def _run_on(**fields: Any) -> dict[str, Any]:
    engine = {"adp_router": types_pb2.ADP_ROUTER_CONVERSATION, "dp_size": 4, **fields}
    engine.setdefault("dialect", types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS)
    identity = types_pb2.Identity(
        agent_context=types_pb2.AgentContext(session_id="child", parent_session_id="parent")
    )
    return {"engine": types_pb2.EngineProfile(**engine), "identity": identity}


def _agent(**fields: Any) -> dict[str, Any]:
    return _identify(agent_context=types_pb2.AgentContext(**fields))


_SIDECAR = {"rank_source": types_pb2.RANK_SOURCE_SIDECAR}
_DEFAULT = {"adp_router": types_pb2.ADP_ROUTER_DEFAULT}
_Case = tuple[dict[str, Any], tuple[Any, ...]]
# Two requests that differ in one thing, and what the rules say of each: directive, id, affinity key and
# notices. tests/contract/test_decision_key.py shows that no field of the contract is forgotten.
_PAIRS: dict[str, tuple[_Case, _Case]] = {
    "conversation_id": (
        (_identify(conversation_id="a"), ("WITHHOLD", "a", "a", ())),
        (_identify(conversation_id="b"), ("WITHHOLD", "b", "b", ())),
    ),
    "agent_context.session_id": (
        (_agent(session_id="a"), ("WITHHOLD", "a", "a", ())),
        (_agent(session_id="b"), ("WITHHOLD", "b", "b", ())),
    ),
    "agent_context.trajectory_id": (
        (_agent(session_id="run", trajectory_id="a"), ("WITHHOLD", "a", "a", ())),
        (_agent(session_id="run", trajectory_id="b"), ("WITHHOLD", "b", "b", ())),
    ),
    "agent_context.session_final": (
        (_agent(session_id="a"), ("WITHHOLD", "a", "a", ())),
        (_agent(session_id="a", session_final=True), ("WITHHOLD", "a", "a", ("session-final",))),
    ),
    "session_control": (
        (_identify(session_control=types_pb2.SessionControl(session_id="a")), ("WITHHOLD", "a", "a", ())),
        (_identify(session_control=types_pb2.SessionControl(session_id="b")), ("WITHHOLD", "b", "b", ())),
    ),
    "headers": (
        (_identify(headers={"x-session-id": "a"}), ("WITHHOLD", "a", "a", ())),
        (_identify(headers={"x-session-id": "b"}), ("WITHHOLD", "b", "b", ())),
    ),
    "metadata": (
        (_identify(metadata={"conversation-id": "a"}), ("WITHHOLD", "a", "a", ())),
        (_identify(metadata={"conversation-id": "b"}), ("WITHHOLD", "b", "b", ())),
    ),
    "body": (
        (_identify(body={"session_id": "a"}), ("WITHHOLD", "a", "a", ())),
        (_identify(body={"session_id": "b"}), ("WITHHOLD", "b", "b", ())),
    ),
    "annotations": (
        (_identify(annotations=["conversation_id:a"]), ("WITHHOLD", "a", "a", ())),
        (_identify(annotations=["conversation_id:b"]), ("WITHHOLD", "b", "b", ())),
    ),
    "tenant": (
        (_identify(conversation_id="1"), ("WITHHOLD", "1", "1", ())),
        # A test vector of docs/contract.md.
        (
            _identify(conversation_id="1") | {"tenant": "tenant-a"},
            ("WITHHOLD", *["rh1-a061aa27cd14682eec8ea9efe44a4101"] * 2, ()),
        ),
    ),
    "kind": (
        (_identify(conversation_id="a"), ("WITHHOLD", "a", "a", ())),
        (
            _identify(conversation_id="a") | {"kind": types_pb2.REQUEST_KIND_WARMUP},
            ("FORWARD", None, None, ("kind-not-normal",)),
        ),
    ),
    "phase": (
        (_run_on(**_DEFAULT, **_SIDECAR), ("PLACE", None, None, ())),
        (
            _run_on(**_DEFAULT, **_SIDECAR) | {"phase": types_pb2.PHASE_DECODE},
            ("FORWARD", None, None, ("placement-phase-off",)),
        ),
    ),
    "dialect": (
        (_run_on(), ("WITHHOLD", "child", "child", ())),
        (
            _run_on(dialect=types_pb2.ENGINE_DIALECT_RANK_ONLY),
            ("FORWARD", None, None, ("dialect-cannot-carry-id",)),
        ),
    ),
    "adp_router": (
        (_run_on(), ("WITHHOLD", "child", "child", ())),
        (_run_on(**_DEFAULT), ("FORWARD", None, None, ("router-pins-nothing",))),
    ),
    "rank_source": (
        (_run_on(), ("WITHHOLD", "child", "child", ())),
        (_run_on(rank_source=types_pb2.RANK_SOURCE_ROUTER), ("FORWARD", "child", "child", ())),
    ),
    "records_first_rank": (
        (_run_on(**_SIDECAR, records_first_rank=True), ("PLACE", "child", "child", ())),
        (_run_on(**_SIDECAR), ("FORWARD", None, None, ("first-rank-not-recorded",))),
    ),
    "dp_size": (
        (_run_on(**_DEFAULT, **_SIDECAR), ("PLACE", None, None, ())),
        (_run_on(**_DEFAULT, **_SIDECAR, dp_size=0), ("FORWARD", None, None, ("dp-size-unknown",))),
    ),
    "subagent_affinity": (
        (_run_on(), ("WITHHOLD", "child", "child", ())),
        (_run_on(subagent_affinity=True), ("WITHHOLD", "child", "parent", ())),
    ),
    "wants_conversation_id": (
        (_run_on(**_DEFAULT), ("FORWARD", None, None, ("router-pins-nothing",))),
        (
            _run_on(**_DEFAULT, wants_conversation_id=True),
            ("FORWARD", "child", "child", ("router-pins-nothing",)),
        ),
    ),
    "unknown enum": (
        (_run_on(rank_source=0), ("WITHHOLD", "child", "child", ())),
        (_run_on(rank_source=99), ("FORWARD", None, None, ("unknown-enum:engine.rank_source",))),
    ),
    "router rank": (
        (_run_on(**_DEFAULT, **_SIDECAR) | {"hints": types_pb2.RoutingHints()}, ("PLACE", None, None, ())),
        (
            _run_on(**_DEFAULT, **_SIDECAR) | {"hints": types_pb2.RoutingHints(dp_rank=0)},
            ("FORWARD", None, None, ("router-rank-kept",)),
        ),
    ),
}


@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
@pytest.mark.parametrize("pair", _PAIRS.values(), ids=_PAIRS)
def test_requests_that_differ_in_something_that_decides_get_their_own_decisions(
    harness: CacheHarness, pair: tuple[Any, ...], step: int
) -> None:
    """Whichever of the two comes first."""
    for fields, (directive, conversation_id, affinity_key, notices) in pair[::step]:
        decision = harness.decide(service_pb2.EnrichRequest(**{"phase": types_pb2.PHASE_PREFILL, **fields}))
        assert decision.directive.name == directive
        assert (decision.conversation_id, decision.affinity_key) == (conversation_id, affinity_key)
        assert decision.notices == notices
