"""A worker of one's own, `examples/own_worker.py`, on engines of several releases; the negative controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from routing_hints.v1 import types_pb2
from tests.e2e.deployments import LEGS, PIN_CONVERSATIONS, own_worker_arguments
from tests.e2e.stack import Stack, wait_for
from tests.e2e.traffic import MODEL, ask, await_ready, converse, openai_client

RANK_ONLY = "rank_only-1.3.0rc11"
CONVERSATION = "conversation_params-1.3.0rc29"
SUBAGENT = "conversation_params-0.0.0+subagent.affinity"


@pytest.fixture
def run(make_stack: Callable[[], Stack]) -> Iterator[Callable[..., Stack]]:
    """Runs a deployment of two own workers; arguments are the script and what each leg's worker gets."""
    running: list[Stack] = []

    def start(
        script: str = "examples/own_worker.py", router_mode: str = "kv", **options: dict[str, object]
    ) -> Stack:
        stack = make_stack()
        running.append(stack)
        stack.start_frontend("--router-mode", router_mode)
        for role in LEGS:
            leg = dict(options[role])
            adp_config = leg.pop("adp_config", {})
            stack.start_worker(
                role,
                script,
                *own_worker_arguments(stack.folder, role, adp_config),  # type: ignore[arg-type]
                **leg,  # type: ignore[arg-type]
            )
        await_ready(stack)
        return stack

    yield start
    for stack in running:
        stack.stop()


def test_rank_only_engine_keeps_the_router_rank_and_says_why(run: Callable[..., Stack]) -> None:
    """An engine that can't be told a conversation gets the router's rank; it is resolved all the same."""
    leg = {"release": RANK_ONLY}
    stack = run(prefill=leg, decode=leg)
    for turn in converse(stack, "conversation-rank-only"):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank
            answer = found.decision.answer
            assert answer.source_detail == "agent_context.session_id"
            assert answer.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
        assert len({found.decision.answer.conversation_hash for found in turn.values()}) == 1
    # The decode engine is told the rank that its own router chose, not the one of prefill.
    for worker in stack.workers.values():
        assert not worker.lines_of("conversation_affinity_active")
        assert not worker.lines_of("routing_hints_defect")


def test_affinity_demanded_of_a_rank_only_engine_is_warned_of_once(run: Callable[..., Stack]) -> None:
    """With affinity on, an engine that can't be told a conversation is named once per worker."""
    leg = {"release": RANK_ONLY, "environment": {"DYN_ENGINE_CONV_AFFINITY": "true"}}
    stack = run(prefill=leg, decode=leg)
    converse(stack, "conversation-in-vain", n_turns=2)
    for worker in stack.workers.values():
        (line,) = worker.lines_of("routing_hints_setting_ignored")
        assert "can't be told a conversation id" in line
        (inactive,) = worker.lines_of("conversation_affinity_inactive")
        assert "dialect-cannot-carry-id" in inactive


def test_fleet_of_mixed_releases_pins_and_places_sub_agents_by_their_parent(
    run: Callable[..., Stack],
) -> None:
    """Only the engine that knows the parameter gets it, on the context leg; each leg pins by its means."""
    stack = run(
        prefill={"release": SUBAGENT, "adp_config": PIN_CONVERSATIONS},
        decode={"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS},
    )
    parent = converse(stack, "agent-parent-0001", n_turns=2)
    children = [
        ask(stack, session=f"agent-child-000{n}", headers={"X-Dynamo-Parent-Session-ID": "agent-parent-0001"})
        for n in (1, 2)
    ]
    assert parent[0]["prefill"].rank == parent[1]["prefill"].rank
    for number, child in enumerate(children, 1):
        assert {leg.conversation_id for leg in child.values()} == {f"agent-child-000{number}"}
        assert child["prefill"].call["kwargs"]["scheduling_params"] == {
            "subagent_affinity_id": "agent-parent-0001"
        }
        assert child["prefill"].rank == parent[0]["prefill"].rank
        assert child["decode"].call["kwargs"]["scheduling_params"] is None


def test_round_robin_frontend_leaves_the_first_rank_to_the_engine(run: Callable[..., Stack]) -> None:
    """A frontend that chooses no rank is no obstacle: the id alone keeps the conversation on its rank."""
    leg = {"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS}
    stack = run(router_mode="round-robin", prefill=leg, decode=leg)
    turns = converse(stack, "conversation-round-robin")
    for role in LEGS:
        assert [turn[role].conversation_id for turn in turns] == ["conversation-round-robin"] * 3
        assert len({turn[role].rank for turn in turns}) == 1
    assert [leg.forced_rank for leg in ask(stack).values()] == [None, None]


def test_router_owns_the_first_rank_of_an_engine_that_records_it(run: Callable[..., Stack]) -> None:
    """With rank source router the first turn is where the router put it, and stays whatever it says later."""
    leg = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "host_options": ["--records-first-rank"],
        "environment": {"DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": "dynamo"},
    }
    stack = run(prefill=leg, decode=leg)
    turns = converse(stack, "conversation-of-the-router")
    for role in LEGS:
        assert turns[0][role].forced_rank == turns[0][role].rank
        assert None not in [turn[role].forced_rank for turn in turns]
        assert {turn[role].conversation_id for turn in turns} == {"conversation-of-the-router"}
        assert len({turn[role].rank for turn in turns}) == 1


def test_kv_cache_aware_engine_places_where_its_cache_is(run: Callable[..., Stack]) -> None:
    """That router probes its caches and needs no id; with rank source engine no rank bypasses it."""
    leg = {
        "release": RANK_ONLY,
        "adp_config": {"enable_kv_cache_aware_routing": True},
        "environment": {"ROUTING_HINTS_RANK_SOURCE": "engine"},
    }
    stack = run(prefill=leg, decode=leg)
    turns = converse(stack, "conversation-kv-aware")
    for role in LEGS:
        assert [turn[role].conversation_id for turn in turns] == [None] * 3
        assert [turn[role].forced_rank for turn in turns] == [None] * 3
        assert len({turn[role].rank for turn in turns}) == 1
    assert turns[2]["prefill"].call["cached_tokens"] > turns[0]["prefill"].call["cached_tokens"]


def test_gate_off_forces_ranks_and_asks_nobody(run: Callable[..., Stack]) -> None:
    """Control: with the gate off the engine gets what it got before, and the sidecar hears nothing."""
    leg = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "environment": {"ROUTING_HINTS_AFFINITY": "off"},
    }
    stack = run(prefill=leg, decode=leg)
    for turn in converse(stack, "conversation-gate-off"):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank
            assert not found.worker.knows_decision(found.request_id)


def test_worker_without_this_project_forces_ranks(run: Callable[..., Stack]) -> None:
    """Control: the worker before its adoption tells the same engine no conversation."""
    leg = {"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS}
    stack = run(script="examples/own_worker_before.py", prefill=leg, decode=leg)
    for turn in converse(stack, "conversation-before", n_turns=2):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank


def test_engine_that_ignores_the_id_is_found_out(run: Callable[..., Stack]) -> None:
    """Control: ids are attached to an engine that only balances; ranks are seen to move, said once.

    Four conversations take their turns together, in another order each time, so that balancing moves them.
    """
    leg = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "host_options": ["--ignores-id", "--token-interval-ms", "150"],
    }
    stack = run(prefill=leg, decode=leg)
    sessions = [f"conversation-adrift-{n}" for n in range(4)]

    def send(session: str) -> None:
        with openai_client() as client:
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"I am {session}"}],
                max_tokens=1,
                extra_headers={"X-Dynamo-Session-ID": session},
            )

    prefill = stack.workers["prefill"]
    with ThreadPoolExecutor(4) as pool:
        for turn in range(6):
            n_before = len(prefill.engine_calls())
            list(pool.map(send, sessions[turn % 4 :] + sessions[: turn % 4]))
            wait_for(lambda n=n_before: len(prefill.engine_calls()) >= n + 4 or None, "the turn's calls")
    calls = prefill.take_new_calls()
    assert {call["conversation_id"] for call in calls} == set(sessions)
    assert {call["kwargs"]["scheduling_params"] is None for call in calls} == {True}
    wait_for(lambda: prefill.lines_of("conversation_affinity_not_honoured") or None, "the warning")
    assert len(prefill.lines_of("conversation_affinity_not_honoured")) == 1
