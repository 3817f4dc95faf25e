"""What the client remembers of conversations, and when it may apply that at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import ENGINE, FORWARD, PLACE, WITHHOLD, build_decision, build_profile
from worker_client import AdpRouter, Decision, EngineProfile, Origin, Phase, PlacementState
from worker_client._memory import Confirmation, Memory, make_key
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
        {"router_rank": 3},
    ],
    ids=str,
)
def test_the_key_changes_with_what_can_change_the_decision(changes: dict[str, Any]) -> None:
    """Phase, engine, model, tenant, whether there is a router's rank, and every carrier that is read."""
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "r"},
        {"traceparent": "00-a-b-01"},
        {"prompt_tokens": 9},
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


def remember(
    memory: Memory,
    key: bytes,
    decision: Decision,
    engine: EngineProfile = ENGINE,
    *,
    stream_number: int = 1,
    seq: int = 1,
    generation: int = 1,
    at_s: float = 0.0,
) -> None:
    """Remembers what the sidecar decided about item `seq`."""
    memory.remember(key, decision, engine, Confirmation(stream_number, seq, generation, at_s))


def test_a_decision_is_recalled_without_what_held_for_one_request_only() -> None:
    memory = Memory(8)
    decision = build_decision(WITHHOLD, "c", placement=PlacementState.NEW, decision_id="d-1", notices=("n",))
    remember(memory, b"k", decision)
    assert memory.recall(b"k", R1) == replace(
        decision, origin=Origin.MEMORY, placement=PlacementState.NONE, decision_id=""
    )


def test_a_decision_without_an_identity_is_not_remembered() -> None:
    memory = Memory(8)
    remember(memory, b"k", build_decision(FORWARD, conversation_hash=""))
    assert memory.recall(b"k", R1) is None


def test_a_new_policy_ends_the_decision_and_keeps_the_bound_rank() -> None:
    """The rule may have changed; where the KV cache is has not."""
    memory = Memory(8)
    remember(memory, b"k", build_decision(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    assert memory.recall(b"k", R2) is None
    assert memory.bound_rank(b"k") == 3


def test_a_placed_rank_is_repeated_where_the_engine_pins_nothing() -> None:
    memory = Memory(8)
    remember(memory, b"k", build_decision(PLACE, dp_rank=3), build_profile(adp_router=AdpRouter.DEFAULT))
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank) == (PLACE, 3)


def test_a_placed_first_rank_becomes_withhold_where_the_engine_pins() -> None:
    """From the second turn on the engine's own binding decides, and the bound rank stays known."""
    memory = Memory(8)
    engine = build_profile(records_first_rank=True)
    remember(memory, b"k", build_decision(PLACE, "c", dp_rank=3, placement=PlacementState.NEW), engine)
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert (recalled.directive, recalled.dp_rank, memory.bound_rank(b"k")) == (WITHHOLD, None, 3)
    remember(memory, b"k", build_decision(WITHHOLD, "c", placement=PlacementState.RETAINED), engine)
    assert memory.bound_rank(b"k") == 3


def test_a_forwarded_decision_ends_a_binding() -> None:
    """The router's rank decides from then on."""
    memory = Memory(8)
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    remember(memory, b"k", build_decision(PLACE, dp_rank=3), engine)
    remember(memory, b"k", build_decision(FORWARD), engine)
    assert memory.bound_rank(b"k") is None


def test_the_decision_used_longest_ago_is_forgotten_first() -> None:
    memory = Memory(2)
    for name in (b"a", b"b"):
        remember(memory, name, build_decision(WITHHOLD, "c"))
    assert memory.recall(b"a", R1) is not None
    remember(memory, b"c", build_decision(WITHHOLD, "c"))
    assert [memory.recall(name, R1) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_a_memory_of_no_entries_holds_nothing() -> None:
    memory = Memory(0)
    remember(memory, b"k", build_decision(WITHHOLD, "c"))
    assert memory.recall(b"k", R1) is None


REUSABLE = build_decision(WITHHOLD, "c", decision_id="d-1", reusable=True)
REUSING = replace(R1, generation=1, reuse_max_age_s=60.0)


def find(
    memory: Memory, policy: ClientPolicy = REUSING, stream_number: int = 1, now_s: float = 1.0
) -> Decision | None:
    return memory.find_reusable(b"k", policy, stream_number, now_s)


def test_a_reusable_decision_is_applied_as_it_was_decided() -> None:
    """With its id, by which the sidecar knows what was applied."""
    memory = Memory(8)
    remember(memory, b"k", REUSABLE)
    assert find(memory) == replace(REUSABLE, origin=Origin.REUSED)


@pytest.mark.parametrize(
    ("placement", "reused"),
    [
        (PlacementState.NONE, PlacementState.NONE),
        (PlacementState.NEW, PlacementState.RETAINED),
        (PlacementState.MOVED, PlacementState.RETAINED),
        (PlacementState.RETAINED, PlacementState.RETAINED),
    ],
)
def test_a_conversation_that_was_placed_is_retained_where_its_decision_is_reused(
    placement: PlacementState, reused: PlacementState
) -> None:
    memory = Memory(8)
    remember(memory, b"k", build_decision(PLACE, dp_rank=3, placement=placement, reusable=True))
    decision = find(memory)
    assert decision is not None
    assert decision.placement is reused


@pytest.mark.parametrize(
    "circumstances",
    [
        {"stream_number": 0},
        {"stream_number": 2},
        {"now_s": 60.0},
        {"policy": replace(REUSING, revision="r2")},
        {"policy": replace(REUSING, generation=2)},
        {"policy": replace(REUSING, reuse_max_age_s=0.0)},
    ],
    ids=["no stream", "another stream", "too old", "another policy", "another generation", "reuse is off"],
)
def test_a_decision_is_not_reused_under_what_may_have_changed_it(circumstances: dict[str, Any]) -> None:
    memory = Memory(8)
    remember(memory, b"k", REUSABLE)
    assert find(memory, **circumstances) is None


def test_a_decision_that_is_not_reusable_is_not_reused() -> None:
    memory = Memory(8)
    remember(memory, b"k", replace(REUSABLE, reusable=False))
    assert find(memory) is None


def test_a_blocked_decision_is_reused_again_once_it_is_confirmed() -> None:
    memory = Memory(8)
    remember(memory, b"k", REUSABLE)
    memory.block(b"k")
    assert find(memory) is None
    memory.confirm(b"k", Confirmation(1, 2, 1, 1.0))
    assert find(memory) is not None


def test_a_confirmation_makes_a_decision_last_longer() -> None:
    memory = Memory(8)
    remember(memory, b"k", REUSABLE)
    memory.confirm(b"k", Confirmation(1, 2, 1, 30.0))
    assert find(memory, now_s=89.0) is not None
    assert find(memory, now_s=90.0) is None


def test_a_confirmation_of_an_older_request_changes_nothing() -> None:
    """Results come in any order."""
    memory = Memory(8)
    remember(memory, b"k", REUSABLE, seq=5, generation=1)
    memory.confirm(b"k", Confirmation(1, 4, 2, 1.0))
    assert find(memory) is not None


@pytest.mark.parametrize(("stream_number", "seq"), [(2, 4), (1, 9)])
def test_a_decision_about_an_older_request_does_not_replace_a_newer_one(stream_number: int, seq: int) -> None:
    """The number of the stream counts before that of the item."""
    memory = Memory(8)
    remember(memory, b"k", REUSABLE, stream_number=2, seq=5)
    remember(memory, b"k", build_decision(FORWARD), stream_number=stream_number, seq=seq)
    recalled = memory.recall(b"k", R1)
    assert recalled is not None
    assert recalled.directive is WITHHOLD


def test_an_ended_conversation_is_forgotten_with_its_rank_under_every_key() -> None:
    """A conversation has a key for each phase and engine."""
    memory = Memory(8)
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    for name in (b"k", b"l"):
        remember(memory, name, build_decision(PLACE, dp_rank=3), engine)
        memory.note_rank(name, 3)
    memory.forget("0123456789abcdef")
    assert [memory.recall(name, R1) for name in (b"k", b"l")] == [None, None]
    assert [memory.bound_rank(name) for name in (b"k", b"l")] == [None, None]


def test_the_end_of_another_conversation_forgets_nothing() -> None:
    memory = Memory(8)
    remember(memory, b"k", REUSABLE)
    memory.forget("fedcba9876543210")
    assert find(memory) is not None


def test_the_end_of_the_conversation_that_a_key_named_before_forgets_nothing() -> None:
    """A policy that derives ids otherwise gives the same key another conversation."""
    memory = Memory(8)
    remember(memory, b"k", replace(REUSABLE, conversation_hash="fedcba9876543210"))
    remember(memory, b"k", REUSABLE, seq=2)
    memory.forget("fedcba9876543210")
    assert find(memory) is not None


def test_an_observed_rank_is_known_until_a_decision_binds_the_conversation() -> None:
    memory = Memory(8)
    memory.note_rank(b"k", 2)
    assert memory.bound_rank(b"k") == 2
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    remember(memory, b"k", build_decision(PLACE, dp_rank=3), engine)
    assert memory.bound_rank(b"k") == 3
