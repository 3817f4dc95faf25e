"""A worker of one's own, `examples/own_worker.py`, on engines of several releases; the negative controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from routing_hints.v1 import types_pb2
from tests.e2e.deployments import PHASES, PIN_CONVERSATIONS, own_worker_arguments
from tests.e2e.stack import Stack, wait_for
from tests.e2e.traffic import MODEL, await_ready, converse, openai_client, send

RANK_ONLY = "rank_only-1.3.0rc11"
CONVERSATION = "conversation_params-1.3.0rc29"
SUBAGENT = "conversation_params-0.0.0+subagent.affinity"


@pytest.fixture
def run(make_stack: Callable[[], Stack]) -> Iterator[Callable[..., Stack]]:
    """Runs a deployment of two own workers; arguments are the script and the settings of each phase."""
    running: list[Stack] = []

    def start(
        script: str = "examples/own_worker.py", router_mode: str = "kv", **options: dict[str, object]
    ) -> Stack:
        stack = make_stack()
        running.append(stack)
        stack.start_frontend("--router-mode", router_mode)
        for role in PHASES:
            settings = dict(options[role])
            adp_config = settings.pop("adp_config", {})
            stack.start_worker(
                role,
                script,
                *own_worker_arguments(stack.folder, role, adp_config),  # type: ignore[arg-type]
                **settings,  # type: ignore[arg-type]
            )
        await_ready(stack)
        return stack

    yield start
    for stack in running:
        stack.stop()


def test_rank_only_engine_keeps_the_router_rank_and_says_why(run: Callable[..., Stack]) -> None:
    """An engine that takes no conversation id gets the router's rank; the id is resolved all the same."""
    options = {"release": RANK_ONLY}
    stack = run(prefill=options, decode=options)
    for turn in converse(stack, "conversation-rank-only"):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank
            decision = found.record.decision
            assert decision.source_detail == "agent_context.session_id"
            assert decision.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
        assert len({found.record.decision.conversation_hash for found in turn.values()}) == 1
    # The decode engine gets the rank that its own router chose, not the one of prefill.
    for worker in stack.workers.values():
        assert not worker.lines_of("conversation_affinity_active")
        assert not worker.lines_of("routing_hints_internal_error")


def test_affinity_demanded_of_a_rank_only_engine_is_warned_of_once(run: Callable[..., Stack]) -> None:
    """Where affinity is on, once by each worker."""
    options = {"release": RANK_ONLY, "environment": {"DYN_ENGINE_CONV_AFFINITY": "true"}}
    stack = run(prefill=options, decode=options)
    converse(stack, "conversation-in-vain", n_turns=2)
    for worker in stack.workers.values():
        (line,) = worker.lines_of("routing_hints_setting_ignored")
        assert "takes no conversation id" in line
        (inactive,) = worker.lines_of("conversation_affinity_inactive")
        assert "dialect-cannot-carry-id" in inactive


def test_fleet_of_mixed_releases_pins_and_places_sub_agents_by_their_parent(
    run: Callable[..., Stack],
) -> None:
    """Only the engine that has the parameter gets it, in the prefill phase; each phase pins by its means."""
    stack = run(
        prefill={"release": SUBAGENT, "adp_config": PIN_CONVERSATIONS},
        decode={"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS},
    )
    parent = converse(stack, "agent-parent-0001", n_turns=2)
    children = [
        send(
            stack, session=f"agent-child-000{n}", headers={"X-Dynamo-Parent-Session-ID": "agent-parent-0001"}
        )
        for n in (1, 2)
    ]
    assert parent[0]["prefill"].rank == parent[1]["prefill"].rank
    for number, child in enumerate(children, 1):
        assert {request.conversation_id for request in child.values()} == {f"agent-child-000{number}"}
        assert child["prefill"].call["kwargs"]["scheduling_params"] == {
            "subagent_affinity_id": "agent-parent-0001"
        }
        assert child["prefill"].rank == parent[0]["prefill"].rank
        assert child["decode"].call["kwargs"]["scheduling_params"] is None


def test_round_robin_frontend_leaves_the_first_rank_to_the_engine(run: Callable[..., Stack]) -> None:
    """A frontend that chooses no rank is no obstacle: the id alone keeps the conversation on its rank."""
    options = {"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS}
    stack = run(router_mode="round-robin", prefill=options, decode=options)
    turns = converse(stack, "conversation-round-robin")
    for role in PHASES:
        assert [turn[role].conversation_id for turn in turns] == ["conversation-round-robin"] * 3
        assert len({turn[role].rank for turn in turns}) == 1
    assert [request.forced_rank for request in send(stack).values()] == [None, None]


def test_router_owns_the_first_rank_of_an_engine_that_records_it(run: Callable[..., Stack]) -> None:
    """With rank source router the first turn is where the router put it, and stays whatever it says later."""
    options = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "host_options": ["--records-first-rank"],
        "environment": {"DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": "dynamo"},
    }
    stack = run(prefill=options, decode=options)
    turns = converse(stack, "conversation-of-the-router")
    for role in PHASES:
        assert turns[0][role].forced_rank == turns[0][role].rank
        assert None not in [turn[role].forced_rank for turn in turns]
        assert {turn[role].conversation_id for turn in turns} == {"conversation-of-the-router"}
        assert len({turn[role].rank for turn in turns}) == 1


def test_kv_cache_aware_engine_places_where_its_cache_is(run: Callable[..., Stack]) -> None:
    """That router probes its caches and needs no id; with rank source engine no rank bypasses it."""
    options = {
        "release": RANK_ONLY,
        "adp_config": {"enable_kv_cache_aware_routing": True},
        "environment": {"ROUTING_HINTS_RANK_SOURCE": "engine"},
    }
    stack = run(prefill=options, decode=options)
    turns = converse(stack, "conversation-kv-aware")
    for role in PHASES:
        assert [turn[role].conversation_id for turn in turns] == [None] * 3
        assert [turn[role].forced_rank for turn in turns] == [None] * 3
        assert len({turn[role].rank for turn in turns}) == 1
    assert turns[2]["prefill"].call["cached_tokens"] > turns[0]["prefill"].call["cached_tokens"]


def test_with_the_gate_off_ranks_are_forced_and_no_sidecar_is_called(run: Callable[..., Stack]) -> None:
    """The control: the engine gets what it gets without this project."""
    options = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "environment": {"ROUTING_HINTS_AFFINITY": "off"},
    }
    stack = run(prefill=options, decode=options)
    for turn in converse(stack, "conversation-gate-off"):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank
            assert not found.worker.has_record(found.request_id)


def test_worker_without_this_project_forces_ranks(run: Callable[..., Stack]) -> None:
    """The control: the worker before its adoption passes the same engine no conversation id."""
    options = {"release": CONVERSATION, "adp_config": PIN_CONVERSATIONS}
    stack = run(script="examples/own_worker_before.py", prefill=options, decode=options)
    for turn in converse(stack, "conversation-before", n_turns=2):
        for found in turn.values():
            assert found.conversation_id is None
            assert found.forced_rank == found.rank


def test_an_engine_that_ignores_ids_is_logged_once_as_not_honoring_them(run: Callable[..., Stack]) -> None:
    """The control: four conversations take turns together, in another order each time, so that they move."""
    options = {
        "release": CONVERSATION,
        "adp_config": PIN_CONVERSATIONS,
        "host_options": ["--ignores-id", "--token-interval-ms", "150"],
    }
    stack = run(prefill=options, decode=options)
    sessions = [f"conversation-adrift-{n}" for n in range(4)]

    def send_turn(session: str) -> None:
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
            list(pool.map(send_turn, sessions[turn % 4 :] + sessions[: turn % 4]))
            wait_for(lambda n=n_before: len(prefill.engine_calls()) >= n + 4 or None, "the turn's calls")
    calls = prefill.take_new_calls()
    assert {call["conversation_id"] for call in calls} == set(sessions)
    assert {call["kwargs"]["scheduling_params"] is None for call in calls} == {True}
    wait_for(lambda: prefill.lines_of("conversation_affinity_not_honored") or None, "the warning")
    assert len(prefill.lines_of("conversation_affinity_not_honored")) == 1
