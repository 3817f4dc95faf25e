"""What the client remembers of conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import FORWARD, PLACE, WITHHOLD, build_decision, build_profile
from worker_client import AdpRouter, Origin, Phase, PlacementState
from worker_client._memory import Memory, make_key
from worker_client._model import ClientPolicy
from worker_client._request import AgentContext, RequestFacts, SessionControl
from worker_client._selected_carriers import select_carriers

R1 = ClientPolicy(
    revision="r1", headers=("x-session-id",), body=("metadata.user_id",), annotations=("session:",)
)
R2 = replace(R1, revision="r2")

BASE: dict[str, Any] = {
    "phase": Phase.PREFILL,
    "model": "m",
    "tenant": "t",
    "conversation_id": "c",
    "agent_context": AgentContext("s", "p", trajectory_id="tr"),
    "session_control": SessionControl("sc"),
    "headers": {"x-session-id": "h"},
    "body": {"metadata": {"user_id": "u"}},
    "annotations": ("session:a",),
}


def key(policy: ClientPolicy = R1, instance_id: str = "engine-1", **changes: Any) -> bytes:
    facts = RequestFacts(**{**BASE, **changes})
    return make_key(facts, build_profile(instance_id=instance_id), select_carriers(facts, policy))


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": Phase.DECODE},
        {"model": "m2"},
        {"tenant": "t2"},
        {"conversation_id": "c2"},
        {"agent_context": AgentContext("s2", "p", trajectory_id="tr")},
        {"agent_context": AgentContext("s", "p2", trajectory_id="tr")},
        {"agent_context": AgentContext("s", "p", trajectory_id="tr2")},
        {"agent_context": None},
        {"session_control": SessionControl("sc2")},
        {"session_control": None},
        {"headers": {"x-session-id": "h2"}},
        {"headers": {}},
        {"body": {"metadata": {"user_id": "u2"}}},
        {"annotations": ("session:b",)},
        {"instance_id": "engine-2"},
    ],
    ids=str,
)
def test_the_key_changes_with_what_can_change_the_decision(changes: dict[str, Any]) -> None:
    """Phase, engine, model, tenant and every identity carrier that the policy reads."""
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "r"},
        {"traceparent": "00-a-b-01"},
        {"prompt_tokens": 9},
        {"router_rank": 3},
        {"headers": {"x-session-id": "h", "x-request-id": "17", "date": "now"}},
        {"metadata": {"trace": "17"}},
        {"annotations": ("session:a", "query:17")},
        {"session_control": SessionControl("sc", "close", 30)},
    ],
    ids=str,
)
def test_the_key_does_not_change_with_what_changes_in_each_request(changes: dict[str, Any]) -> None:
    """A conversation's next turn has the same key."""
    assert key(**changes) == key()


def test_the_key_does_not_change_with_per_request_headers() -> None:
    """Such a header is sent, but states something about one request only."""
    policy = replace(R1, per_request_headers=("x-codex-turn-metadata",))
    keys = {
        key(policy, headers={"x-session-id": "h", "x-codex-turn-metadata": f'{{"turn_id": "{turn}"}}'})
        for turn in range(3)
    }
    assert keys == {key(policy)}


def test_the_key_tells_the_forms_of_a_body_field_apart() -> None:
    """OpenAI's `conversation` counts as text and as an object."""
    policy = replace(R1, body=("conversation", "conversation.id"))
    bodies = ({"conversation": "a"}, {"conversation": {"id": "a"}}, {"conversation": {"id": "b"}}, {})
    assert len({key(policy, body=body) for body in bodies}) == 4


def test_the_same_value_in_another_carrier_is_another_key() -> None:
    """A policy that reads another header must not find the conversations of the one before."""
    facts = RequestFacts(headers={"a": "v"})
    other = RequestFacts(headers={"b": "v"})
    engine = build_profile()
    assert make_key(facts, engine, select_carriers(facts, ClientPolicy(headers=("a",)))) != make_key(
        other, engine, select_carriers(other, ClientPolicy(headers=("b",)))
    )
    assert key(conversation_id="", session_control=SessionControl("c")) != key(session_control=None)


def test_the_key_holds_no_raw_id() -> None:
    """Session ids are personal data."""
    assert len(key()) == 16
    assert b"engine-1" not in key()


def test_a_decision_is_recalled_without_what_held_for_one_request_only() -> None:
    memory = Memory(8)
    decision = build_decision(WITHHOLD, "c", placement=PlacementState.NEW, decision_id="d-1", notices=("n",))
    memory.remember(b"k", decision, build_profile())
    assert memory.recall(b"k", R1) == replace(
        decision, origin=Origin.MEMORY, placement=PlacementState.NONE, decision_id=""
    )


def test_a_decision_without_an_identity_is_not_remembered() -> None:
    memory = Memory(8)
    memory.remember(b"k", build_decision(FORWARD, conversation_hash=""), build_profile())
    assert memory.recall(b"k", R1) is None


def test_a_new_policy_ends_the_decision_and_keeps_the_bound_rank() -> None:
    """The rule may have changed; where the KV cache is has not."""
    memory = Memory(8)
    memory.remember(b"k", build_decision(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    assert memory.recall(b"k", R2) is None
    assert memory.bound_rank(b"k") == 3


def test_a_placed_rank_is_repeated_where_the_engine_pins_nothing() -> None:
    memory = Memory(8)
    memory.remember(b"k", build_decision(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank) == (PLACE, 3)


def test_a_placed_first_rank_becomes_withhold_where_the_engine_pins() -> None:
    """From the second turn on the engine's own binding decides, and the bound rank stays known."""
    memory = Memory(8)
    engine = build_profile(records_first_rank=True)
    memory.remember(b"k", build_decision(PLACE, "c", dp_rank=3, placement=PlacementState.NEW), engine)
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank, memory.bound_rank(b"k")) == (WITHHOLD, None, 3)
    memory.remember(b"k", build_decision(WITHHOLD, "c", placement=PlacementState.RETAINED), engine)
    assert memory.bound_rank(b"k") == 3


def test_a_forwarded_decision_ends_a_binding() -> None:
    """The router's rank decides from then on."""
    memory = Memory(8)
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    memory.remember(b"k", build_decision(PLACE, dp_rank=3), engine)
    memory.remember(b"k", build_decision(FORWARD), engine)
    assert memory.bound_rank(b"k") is None


def test_the_decision_used_longest_ago_is_forgotten_first() -> None:
    memory = Memory(2)
    for name in (b"a", b"b"):
        memory.remember(name, build_decision(WITHHOLD, "c"), build_profile())
    assert memory.recall(b"a", R1) is not None
    memory.remember(b"c", build_decision(WITHHOLD, "c"), build_profile())
    assert [memory.recall(name, R1) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_a_memory_of_no_entries_holds_nothing() -> None:
    memory = Memory(0)
    memory.remember(b"k", build_decision(WITHHOLD, "c"), build_profile())
    assert memory.recall(b"k", R1) is None
