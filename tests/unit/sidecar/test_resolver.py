"""Answers that are remembered by their questions: the same as decided anew, and no longer than they hold."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2, types_pb2
from sidecar import resolver as module
from sidecar.compiled import CompiledPolicy
from sidecar.enrich import decide
from sidecar.field_limit import FieldError
from sidecar.policy_compiler import compile_policy
from sidecar.policy_file import parse_policy
from sidecar.request_codec import UNKNOWN_CALLER, Caller, decode_query
from sidecar.resolver import Resolution, Resolver

_POLICY = compile_policy(parse_policy(""))
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)
_NONE: frozenset[str] = frozenset()


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


_RANKS = st.none() | st.integers(0, 3)
_ENGINES = st.builds(
    types_pb2.EngineProfile,
    dialect=st.sampled_from([0, 1, 3, 9]),
    adp_router=st.sampled_from([0, 2, 3, 4]),
    rank_source=st.sampled_from([0, 1, 2, 3]),
    dp_size=st.just(4),
)
_IDENTITIES = st.builds(
    types_pb2.Identity,
    conversation_id=st.sampled_from(["", "", "conv-1"]),
    headers=st.dictionaries(st.sampled_from(["x-session-id", "X-Tenant-Id"]), st.sampled_from(["1", "none"])),
)
_REQUESTS = st.builds(
    service_pb2.EnrichRequest,
    request_id=st.sampled_from(["", "r-1", "r-2"]),
    worker_id=st.sampled_from(["", "w-1"]),
    phase=st.sampled_from([1, 2, 3, 9]),
    kind=st.sampled_from([0, 1, 2]),
    identity=_IDENTITIES,
    hints=st.none() | st.builds(types_pb2.RoutingHints, dp_rank=_RANKS, prefill_dp_rank=_RANKS),
    engine=st.none() | _ENGINES,
    model=st.sampled_from(["", "m"]),
    tenant=st.sampled_from(["", "t"]),
    prompt_tokens=st.sampled_from([0, 7]),
    traceparent=st.sampled_from(["", "00-1"]),
    known_rank=_RANKS,
)
_POLICIES = st.sampled_from(
    [
        compile_policy(parse_policy(text))
        for text in ("", "operational: {mode: shadow}", "operational: {rollout_percent: 50}")
    ]
)


@given(requests=st.lists(_REQUESTS, min_size=2, max_size=12), policy=_POLICIES)
def test_an_answer_is_what_would_be_decided_anew(
    requests: list[service_pb2.EnrichRequest], policy: CompiledPolicy
) -> None:
    """Whatever was asked before, a request is read and answered as the first one is."""
    resolver = Resolver()
    for request in (*requests, *requests):
        query, answer, encoded = resolver.resolve(request, UNKNOWN_CALLER, policy, _NONE)
        assert query == decode_query(request)
        assert answer == decide(query, policy)
        response = service_pb2.EnrichResponse.FromString(encoded)
        assert (response.rank_directive, response.source) == (answer.directive, answer.source)
        assert response.hints.conversation_id == (answer.conversation_id or "")


def test_a_conversation_is_decided_about_once(counted: Counted) -> None:
    """The next turn, with another request id and another rank of the router, costs no decision."""
    again = make_request(request_id="r-2")
    again.hints.dp_rank = 3
    first = make_request()
    first.hints.dp_rank = 1
    counted.resolve(first)
    resolution = counted.resolve(again)
    assert counted.decisions == 1
    assert (resolution.query.request_id, resolution.query.router_rank) == ("r-2", 3)


_DEFAULT_ROUTER = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_DEFAULT,
    rank_source=types_pb2.RANK_SOURCE_ENGINE,
)
_PLACING = types_pb2.EngineProfile(
    adp_router=types_pb2.ADP_ROUTER_DEFAULT, rank_source=types_pb2.RANK_SOURCE_SIDECAR, dp_size=4
)
# What a request has besides its header, and what the rules say of it.
_CASES: tuple[tuple[dict[str, Any], str, str | None, tuple[str, ...]], ...] = (
    ({"engine": _ENGINE}, "WITHHOLD", "1", ()),
    ({"engine": _ENGINE, "kind": types_pb2.REQUEST_KIND_WARMUP}, "FORWARD", None, ("kind-not-normal",)),
    # A test vector of docs/contract.md.
    ({"engine": _ENGINE, "tenant": "tenant-a"}, "WITHHOLD", "rh1-a061aa27cd14682eec8ea9efe44a4101", ()),
    ({"engine": _DEFAULT_ROUTER}, "FORWARD", None, ("router-pins-nothing",)),
    (
        {"engine": _DEFAULT_ROUTER, "hints": types_pb2.RoutingHints(dp_rank=0)},
        "FORWARD",
        None,
        ("router-pins-nothing", "router-rank-kept"),
    ),
    ({"engine": _PLACING}, "PLACE", None, ()),
    ({"engine": _PLACING, "phase": types_pb2.PHASE_DECODE}, "FORWARD", None, ("placement-phase-off",)),
)


@pytest.mark.parametrize("order", [_CASES, _CASES[::-1]], ids=["forwards", "backwards"])
def test_whatever_a_decision_depends_on_tells_questions_apart(order: tuple[Any, ...]) -> None:
    """Requests that differ in one such thing get their own answers, in whatever order they ask."""
    resolver = Resolver()
    for fields, directive, conversation_id, notices in order:
        identity = types_pb2.Identity(headers={"x-session-id": "1"})
        request = service_pb2.EnrichRequest(
            **{"phase": types_pb2.PHASE_PREFILL, "identity": identity, **fields}
        )
        answer = resolver.resolve(request, UNKNOWN_CALLER, _POLICY, _NONE).answer
        assert answer.directive.name == directive
        assert (answer.conversation_id, answer.notices) == (conversation_id, notices)


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


def test_during_a_rollout_requests_without_an_id_are_chosen_one_by_one(counted: Counted) -> None:
    """Where the request's own id decides, no answer stands for another request."""
    policy = compile_policy(parse_policy("operational: {rollout_percent: 50}"))
    answers = [counted.resolve(make_request("", f"r-{number}"), policy).answer for number in range(64)]
    assert {"outside-rollout" in answer.notices for answer in answers} == {True, False}


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


def test_a_long_question_is_not_remembered(counted: Counted) -> None:
    """What would take much memory is decided each time."""
    for _ in range(2):
        counted.resolve(make_request("s" * 1_024))
    assert counted.decisions == 2
