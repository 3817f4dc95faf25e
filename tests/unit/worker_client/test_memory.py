"""What the client remembers of conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import build_answer, build_profile
from worker_client import AdpRouter, Decision, Origin, Phase, RankDirective
from worker_client._memory import Memory, make_key
from worker_client._model import ClientPolicy
from worker_client._request import AgentContext, RequestFacts, SessionControl
from worker_client._selected_carriers import pick_carriers

R1 = ClientPolicy(
    revision="r1", headers=("x-session-id",), body=("metadata.user_id",), annotations=("session:",)
)
R2 = replace(R1, revision="r2")
WITHHOLD, PLACE = RankDirective.WITHHOLD, RankDirective.PLACE
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
    """The key of the base request with changes."""
    facts = RequestFacts(**{**BASE, **changes})
    return make_key(facts, build_profile(instance_id=instance_id), pick_carriers(facts, policy))


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
def test_key_changes_with_what_can_change_the_answer(changes: dict[str, Any]) -> None:
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
def test_key_does_not_change_with_what_changes_each_request(changes: dict[str, Any]) -> None:
    """A conversation is known again on its next turn."""
    assert key(**changes) == key()


def test_key_does_not_change_with_passing_headers() -> None:
    """A header that is sent but says something about one request only is no part of the key."""
    policy = replace(R1, passing_headers=("x-codex-turn-metadata",))
    keys = {
        key(policy, headers={"x-session-id": "h", "x-codex-turn-metadata": f'{{"turn_id": "{turn}"}}'})
        for turn in range(3)
    }
    assert keys == {key(policy)}


def test_key_tells_the_forms_of_a_field_apart() -> None:
    """OpenAI's `conversation` counts as text and as an object."""
    policy = replace(R1, body=("conversation", "conversation.id"))
    bodies = ({"conversation": "a"}, {"conversation": {"id": "a"}}, {"conversation": {"id": "b"}}, {})
    assert len({key(policy, body=body) for body in bodies}) == 4


def test_value_in_another_carrier_is_another_key() -> None:
    """A policy that reads another header must not find the conversations of the one before."""
    facts = RequestFacts(headers={"a": "v"})
    other = RequestFacts(headers={"b": "v"})
    engine = build_profile()
    assert make_key(facts, engine, pick_carriers(facts, ClientPolicy(headers=("a",)))) != make_key(
        other, engine, pick_carriers(other, ClientPolicy(headers=("b",)))
    )
    assert key(conversation_id="", session_control=SessionControl("c")) != key(session_control=None)


def test_key_holds_no_raw_id() -> None:
    """Session ids are personal data."""
    assert len(key()) == 16
    assert b"engine-1" not in key()


def test_answer_is_recalled_as_memory_without_its_decision() -> None:
    """What held for one request only is left off."""
    memory = Memory(8)
    answer = build_answer(WITHHOLD, "c", decision=Decision.NEW, decision_id="d-1", notices=("n",))
    memory.remember(b"k", answer, build_profile())
    assert memory.recall(b"k", R1) == replace(
        answer, origin=Origin.MEMORY, decision=Decision.NONE, decision_id=""
    )


def test_answer_without_an_identity_is_not_remembered() -> None:
    """There is no conversation to know again."""
    memory = Memory(8)
    memory.remember(b"k", build_answer(RankDirective.FORWARD, conversation_hash=""), build_profile())
    assert memory.recall(b"k", R1) is None


def test_new_policy_forgets_the_answer_and_keeps_the_bound_rank() -> None:
    """The rule may have changed; where the KV cache is has not."""
    memory = Memory(8)
    memory.remember(b"k", build_answer(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    assert memory.recall(b"k", R2) is None
    assert memory.bound_rank(b"k") == 3


def test_placed_rank_is_repeated_where_the_engine_pins_nothing() -> None:
    """The sidecar's placement outlives the sidecar."""
    memory = Memory(8)
    memory.remember(b"k", build_answer(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank) == (PLACE, 3)


def test_placed_first_rank_becomes_withhold_where_the_engine_pins() -> None:
    """From the second turn on the engine's own binding decides, and the bound rank stays known."""
    memory = Memory(8)
    engine = build_profile(records_first_rank=True)
    memory.remember(b"k", build_answer(PLACE, "c", dp_rank=3, decision=Decision.NEW), engine)
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank, memory.bound_rank(b"k")) == (WITHHOLD, None, 3)
    memory.remember(b"k", build_answer(WITHHOLD, "c", decision=Decision.RETAINED), engine)
    assert memory.bound_rank(b"k") == 3


def test_forwarded_answer_ends_a_binding() -> None:
    """The router's rank decides from then on, so the old one says nothing any more."""
    memory = Memory(8)
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    memory.remember(b"k", build_answer(PLACE, dp_rank=3), engine)
    memory.remember(b"k", build_answer(RankDirective.FORWARD), engine)
    assert memory.bound_rank(b"k") is None


def test_memory_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    """A conversation in use stays, whenever it came."""
    memory = Memory(2)
    for name in (b"a", b"b"):
        memory.remember(name, build_answer(WITHHOLD, "c"), build_profile())
    assert memory.recall(b"a", R1) is not None
    memory.remember(b"c", build_answer(WITHHOLD, "c"), build_profile())
    assert [memory.recall(name, R1) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_memory_of_no_entries_holds_nothing() -> None:
    """Zero switches it off."""
    memory = Memory(0)
    memory.remember(b"k", build_answer(WITHHOLD, "c"), build_profile())
    assert memory.recall(b"k", R1) is None
