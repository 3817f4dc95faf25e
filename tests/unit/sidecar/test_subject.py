"""What a decision depends on: each of it tells two questions apart, so that none gets the other's answer."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.decision.cache import Resolver
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy
from sidecar.wire.request_codec import UNKNOWN_CALLER

_POLICY = compile_policy(parse_policy(""))
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
)


def _ask(fields: dict[str, Any]) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(**{"phase": types_pb2.PHASE_PREFILL, **fields})


def _identify(**fields: Any) -> dict[str, Any]:
    return {"engine": _ENGINE, "identity": types_pb2.Identity(**fields)}


def _run(**fields: Any) -> dict[str, Any]:
    engine = {"adp_router": types_pb2.ADP_ROUTER_CONVERSATION, "dp_size": 4, **fields}
    engine.setdefault("dialect", types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS)
    identity = types_pb2.Identity(
        agent_context=types_pb2.AgentContext(session_id="child", parent_session_id="parent")
    )
    return {"engine": types_pb2.EngineProfile(**engine), "identity": identity}


def _agent(**fields: str) -> dict[str, Any]:
    return _identify(agent_context=types_pb2.AgentContext(**fields))


_SIDECAR = {"rank_source": types_pb2.RANK_SOURCE_SIDECAR}
_DEFAULT = {"adp_router": types_pb2.ADP_ROUTER_DEFAULT}
_PLACED = types_pb2.RoutingHints(dp_rank=0)
_PREFILL_PLACED = types_pb2.RoutingHints(prefill_dp_rank=0)
_Case = tuple[dict[str, Any], tuple[Any, ...]]
# Two questions that differ in one thing, and what the rules say of each: directive, id, affinity key and
# notices.
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
        (_identify(agent_context=types_pb2.AgentContext(session_id="a")), ("WITHHOLD", "a", "a", ())),
        (
            _identify(agent_context=types_pb2.AgentContext(session_id="a", session_final=True)),
            ("WITHHOLD", "a", "a", ("session-final",)),
        ),
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
        (_run(**_DEFAULT, **_SIDECAR), ("PLACE", None, None, ())),
        (
            _run(**_DEFAULT, **_SIDECAR) | {"phase": types_pb2.PHASE_DECODE},
            ("FORWARD", None, None, ("placement-phase-off",)),
        ),
    ),
    "dialect": (
        (_run(), ("WITHHOLD", "child", "child", ())),
        (
            _run(dialect=types_pb2.ENGINE_DIALECT_RANK_ONLY),
            ("FORWARD", None, None, ("dialect-cannot-carry-id",)),
        ),
    ),
    "adp_router": (
        (_run(), ("WITHHOLD", "child", "child", ())),
        (_run(**_DEFAULT), ("FORWARD", None, None, ("router-pins-nothing",))),
    ),
    "rank_source": (
        (_run(), ("WITHHOLD", "child", "child", ())),
        (_run(rank_source=types_pb2.RANK_SOURCE_ROUTER), ("FORWARD", "child", "child", ())),
    ),
    "records_first_rank": (
        (_run(**_SIDECAR, records_first_rank=True), ("PLACE", "child", "child", ())),
        (_run(**_SIDECAR), ("FORWARD", None, None, ("first-rank-not-recorded",))),
    ),
    "dp_size": (
        (_run(**_DEFAULT, **_SIDECAR), ("PLACE", None, None, ())),
        (_run(**_DEFAULT, **_SIDECAR, dp_size=0), ("FORWARD", None, None, ("dp-size-unknown",))),
    ),
    "subagent_affinity": (
        (_run(), ("WITHHOLD", "child", "child", ())),
        (_run(subagent_affinity=True), ("WITHHOLD", "child", "parent", ())),
    ),
    "wants_conversation_id": (
        (_run(**_DEFAULT), ("FORWARD", None, None, ("router-pins-nothing",))),
        (
            _run(**_DEFAULT, wants_conversation_id=True),
            ("FORWARD", "child", "child", ("router-pins-nothing",)),
        ),
    ),
    "router rank": (
        (_run(**_DEFAULT, **_SIDECAR) | {"hints": _PREFILL_PLACED}, ("PLACE", None, None, ())),
        (
            _run(**_DEFAULT, **_SIDECAR) | {"hints": _PLACED},
            ("FORWARD", None, None, ("router-rank-kept",)),
        ),
    ),
}


@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
@pytest.mark.parametrize("pair", _PAIRS.values(), ids=_PAIRS)
def test_whatever_a_decision_depends_on_tells_questions_apart(pair: tuple[Any, ...], step: int) -> None:
    """Two questions that differ in one such thing get their own answers, whichever comes first."""
    resolver = Resolver()
    for fields, (directive, conversation_id, affinity_key, notices) in pair[::step]:
        answer = resolver.resolve(_ask(fields), UNKNOWN_CALLER, _POLICY, frozenset()).answer
        assert answer.directive.name == directive
        assert (answer.conversation_id, answer.affinity_key) == (conversation_id, affinity_key)
        assert answer.notices == notices
