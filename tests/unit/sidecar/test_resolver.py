"""Answers that are remembered by their questions: the same as decided anew, and no longer than they hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2, types_pb2
from sidecar import resolver as module
from sidecar.decision.cache import Resolution, Resolver
from sidecar.decision.decide import decide
from sidecar.model import NO_IDENTITY, RankDirective
from sidecar.policy.compiled import CompiledPolicy
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import UNKNOWN_CALLER, Caller, decode_query
from sidecar.wire.response_codec import encode_answer

_POLICY = compile_policy(parse_policy(""))
_HALF = compile_policy(parse_policy("operational: {rollout_percent: 50}"))
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)
_NONE: frozenset[str] = frozenset()
_ODD_QUESTIONS = 200


def make_request(session_id: str = "conv-7f3a", request_id: str = "r-1") -> service_pb2.EnrichRequest:
    """A prefill request that a header names the conversation of."""
    return service_pb2.EnrichRequest(
        request_id=request_id,
        phase=types_pb2.PHASE_PREFILL,
        identity=types_pb2.Identity(headers={"x-session-id": session_id}),
        engine=_ENGINE,
    )


class Counted:
    """A resolver, and how often it decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decisions = 0
        self._resolver = Resolver()
        monkeypatch.setattr(module, "decide", self._decide)

    def _decide(self, *arguments: object) -> object:
        self.decisions += 1
        return decide(*arguments)  # type: ignore[arg-type]

    def resolve(
        self,
        request: service_pb2.EnrichRequest,
        policy: CompiledPolicy = _POLICY,
        distrusted: Set[str] = _NONE,
        caller: Caller = UNKNOWN_CALLER,
    ) -> Resolution:
        """Resolves a request, by default under the embedded policy."""
        return self._resolver.resolve(request, caller, policy, distrusted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """A resolver that has resolved nothing yet."""
    return Counted(monkeypatch)


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
_IDS = st.sampled_from(["", "1", "conv-7f3a", "none", "e\u0301"])
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
    tenant=st.sampled_from(["", "t"]),
)
# What requests about one subject have of their own.
_OWN = st.builds(
    service_pb2.EnrichRequest,
    request_id=st.sampled_from(["", "r-1", "r-2"]),
    worker_id=st.sampled_from(["", "w-1"]),
    model=st.sampled_from(["", "m"]),
    prompt_tokens=st.sampled_from([0, 7]),
    traceparent=st.sampled_from(["", "00-1"]),
    known_rank=st.none() | st.integers(0, 3),
)
_POLICIES = [
    compile_policy(parse_policy(text))
    for text in (
        "",
        "operational: {mode: shadow}",
        "operational: {rollout_percent: 50}",
        "identity: {scope: all, subagents: both}",
    )
]
_CALLERS = [UNKNOWN_CALLER, Caller("w-2", decode_query(make_request()).engine, ("hello.engine.dialect",))]
_DISTRUSTED = [_NONE, frozenset({"header:x-session-id", "conversation_id"})]


@given(
    subjects=st.lists(_SUBJECTS, min_size=1, max_size=3),
    asked=st.lists(
        st.tuples(
            st.integers(0, 2),
            _OWN,
            st.none() | st.integers(0, 3),
            st.sampled_from(_POLICIES),
            st.sampled_from(_CALLERS),
            st.sampled_from(_DISTRUSTED),
        ),
        min_size=2,
        max_size=12,
    ),
)
def test_an_answer_is_what_would_be_decided_anew(
    subjects: list[service_pb2.EnrichRequest], asked: list[tuple[Any, ...]]
) -> None:
    """Whatever was asked before and by whatever rules, a request is read and answered as the first one is."""
    resolver = Resolver()
    for number, own, router_rank, policy, caller, distrusted in asked:
        request = service_pb2.EnrichRequest()
        request.CopyFrom(subjects[number % len(subjects)])
        request.MergeFrom(own)
        if request.hints.HasField("dp_rank") and router_rank is not None:
            request.hints.dp_rank = router_rank
        query, answer, encoded = resolver.resolve(request, caller, policy, distrusted)
        anew = decode_query(request, caller)
        assert query == anew._replace(identity=NO_IDENTITY, tenant="")
        assert answer == decide(anew, policy, distrusted)
        if answer.directive is not RankDirective.PLACE:
            assert service_pb2.EnrichResponse.FromString(encoded) == encode_answer(answer, "")


@pytest.mark.parametrize(
    ("field", "value"), [("instance_id", "start-2"), ("dp_size", 8), ("max_active_requests", 64)]
)
def test_the_engine_is_the_requests_own(field: str, value: str | int) -> None:
    """What placement and its books read of the engine is never that of an engine before."""
    resolver = Resolver()
    request = make_request()
    resolver.resolve(request, UNKNOWN_CALLER, _POLICY, _NONE)
    setattr(request.engine, field, value)
    query = resolver.resolve(request, UNKNOWN_CALLER, _POLICY, _NONE).query
    assert getattr(query.engine, field) == value


def test_what_a_request_has_of_its_own_is_read_each_time(counted: Counted) -> None:
    """Nothing but the answer is taken from the request that asked first."""
    first = make_request()
    first.MergeFrom(service_pb2.EnrichRequest(model="m-1", prompt_tokens=1, traceparent="00-1", known_rank=1))
    first.hints.dp_rank = 1
    counted.resolve(first, caller=Caller("w-1"))
    again = make_request(request_id="r-2")
    again.MergeFrom(service_pb2.EnrichRequest(model="m-2", prompt_tokens=2, traceparent="00-2", known_rank=2))
    again.hints.dp_rank = 2
    query = counted.resolve(again, caller=Caller("w-2")).query
    assert counted.decisions == 1
    assert (query.request_id, query.worker_id, query.model) == ("r-2", "w-2", "m-2")
    assert (query.prompt_tokens, query.traceparent) == (2, "00-2")
    assert (query.router_rank, query.known_rank) == (2, 2)


def test_another_policy_decides_anew(counted: Counted) -> None:
    """A reload takes effect with the next question of a known conversation."""
    assert counted.resolve(make_request()).answer.conversation_id == "conv-7f3a"
    off = compile_policy(parse_policy("operational: {mode: off}"))
    assert counted.resolve(make_request(), off).answer.conversation_id is None
    assert counted.resolve(make_request()).answer.conversation_id == "conv-7f3a"


def test_a_distrusted_carrier_decides_anew(counted: Counted) -> None:
    """What the guard says of a carrier holds at once for its known conversations, too."""
    assert counted.resolve(make_request()).answer.conversation_id == "conv-7f3a"
    distrusted = frozenset({"header:x-session-id"})
    assert counted.resolve(make_request(), _POLICY, distrusted).answer.conversation_id is None


@pytest.mark.parametrize(
    ("session_id", "distrusted"), [("", _NONE), ("conv-7f3a", frozenset({"header:x-session-id"}))]
)
def test_during_a_rollout_requests_without_an_id_are_chosen_one_by_one(
    counted: Counted, session_id: str, distrusted: Set[str]
) -> None:
    """Where the request's own id decides, no answer stands for another request."""
    requests = [make_request(session_id, f"r-{number}") for number in range(64)]
    answers = [counted.resolve(request, _HALF, distrusted).answer for request in requests]
    assert {"outside-rollout" in answer.notices for answer in answers} == {True, False}


def test_during_a_rollout_a_conversation_is_decided_about_once(counted: Counted) -> None:
    """It is chosen by its own id, the same with each request."""
    for number in range(3):
        counted.resolve(make_request(request_id=f"r-{number}"), _HALF)
    assert counted.decisions == 1


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [("known_rank", 4, "known_rank"), ("request_id", "r" * 257, "request_id")],
)
def test_a_known_subject_excuses_no_fault(counted: Counted, field: str, value: int | str, path: str) -> None:
    """What a request has of its own is held against its range each time."""
    counted.resolve(make_request())
    request = make_request()
    setattr(request, field, value)
    with pytest.raises(FieldError) as caught:
        counted.resolve(request)
    assert caught.value.field == path


def test_a_rank_of_the_router_is_checked_each_time(counted: Counted) -> None:
    """A rank that the engine has not is refused, although one that it has was asked about before."""
    request = make_request()
    request.hints.dp_rank = 3
    counted.resolve(request)
    request.hints.dp_rank = 4
    with pytest.raises(FieldError, match=r"hints\.dp_rank"):
        counted.resolve(request)


def test_the_engine_of_a_hello_is_its_own_streams(counted: Counted) -> None:
    """Equal questions of two streams get the answers of their own engines."""
    request = make_request()
    request.ClearField("engine")
    pinning = Caller("w-1", decode_query(make_request()).engine)
    assert counted.resolve(request, caller=pinning).answer.conversation_id == "conv-7f3a"
    assert counted.resolve(request).answer.conversation_id is None


def test_the_conversation_asked_about_longest_ago_is_forgotten(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded, and who keeps asking stays known."""
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    for session_id in ("kept", "forgotten", "kept", "new"):
        counted.resolve(make_request(session_id))
    assert counted.decisions == 3
    counted.resolve(make_request("kept"))
    assert counted.decisions == 3
    counted.resolve(make_request("forgotten"))
    assert counted.decisions == 4


def test_a_request_without_a_phase_is_refused_for_that(counted: Counted) -> None:
    """The fault that is named does not depend on what else is wrong, as with Explain."""
    request = make_request(request_id="r" * 257)
    request.ClearField("phase")
    with pytest.raises(FieldError) as caught:
        counted.resolve(request)
    assert caught.value.field == "phase"


def test_a_remembered_question_takes_little_more_than_its_bytes() -> None:
    """Decoded, the carriers of an odd question take twenty times the room, so they are not kept."""
    resolver = Resolver()
    tracemalloc.start()
    for number in range(_ODD_QUESTIONS):
        request = make_request(f"s-{number}")
        request.identity.annotations.extend(["\u0100"] * 240)
        resolver.resolve(request, UNKNOWN_CALLER, _POLICY, _NONE)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes / _ODD_QUESTIONS < 6_000


def test_a_long_question_is_not_remembered(counted: Counted) -> None:
    """What would take much memory is decided each time."""
    for _ in range(2):
        counted.resolve(make_request("s" * 1_024))
    assert counted.decisions == 2
