"""Dynamo's own handlers of 1.6.1 with this client: kv router with events, prefill and decode, dp 4."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Callable

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from tests.e2e.deployments import PHASES, start_dynamo_handlers
from tests.e2e.stack import FRONTEND, Stack, wait_for
from tests.e2e.traffic import (
    MODEL,
    anthropic_client,
    converse,
    find_engine_requests,
    new_request_id,
    openai_client,
    send,
)

RELEASE = "conversation_params-1.3.0rc29"
CANARY = {
    "DYN_SYSTEM_ENABLED": "true",
    "DYN_HEALTH_CHECK_ENABLED": "true",
    "DYN_CANARY_WAIT_TIME": "1",
}


@pytest.fixture(scope="module")
def stack(make_stack: Callable[[], Stack]) -> Stack:
    """The deployment; the engines pin conversations."""
    stack = make_stack()
    start_dynamo_handlers(
        stack,
        "--publish-kv-events",
        release=RELEASE,
        environments={phase: {**CANARY, "DYN_SYSTEM_PORT": f"900{n}"} for n, phase in enumerate(PHASES)},
        host_options=["--token-interval-ms", "20"],
    )
    return stack


def test_conversations_keep_their_rank_in_both_phases(stack: Stack) -> None:
    """Three turns of three conversations: the id attached, no rank forced, one rank in each phase."""
    first_ranks = set()
    for session in ("red", "green", "blue"):
        turns = converse(stack, f"conversation-{session}")
        first_ranks.add(turns[0]["prefill"].rank)
        for phase in PHASES:
            assert [turn[phase].conversation_id for turn in turns] == [f"conversation-{session}"] * 3
            assert [turn[phase].forced_rank for turn in turns] == [None] * 3
            assert len({turn[phase].rank for turn in turns}) == 1
        assert turns[2]["prefill"].call["cached_tokens"] > turns[0]["prefill"].call["cached_tokens"]
    assert len(first_ranks) == 3


def test_both_sidecars_agree_and_say_why(stack: Stack) -> None:
    """Both sidecars name the same conversation, carrier and epoch, and withheld the rank."""
    records = [request.record for request in send(stack, session="conversation-agreed").values()]
    for record in records:
        assert record.decision.source_detail == "agent_context.session_id"
        assert record.decision.rank_directive == types_pb2.RANK_DIRECTIVE_WITHHOLD
        assert record.finish.applied_directive == types_pb2.RANK_DIRECTIVE_WITHHOLD
        assert record.finish.id_attached
        assert not record.finish.local_reason
    assert len({record.decision.conversation_hash for record in records}) == 1
    assert len({record.decision.identity_epoch for record in records}) == 1


def test_observed_rank_is_the_one_that_computed_the_prompt(stack: Stack) -> None:
    """The prefill worker reports its engine's, the decode worker the one that prefill handed over."""
    requests = send(stack, session="conversation-observed")
    for request in requests.values():
        assert request.record.finish.observed_dp_rank == requests["prefill"].rank


def test_router_rank_was_there_and_was_withheld(stack: Stack) -> None:
    """Dynamo's router chose a rank for the very request that went out without one."""
    request_id = new_request_id()
    with openai_client() as client:
        completion = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "which rank?"}],
            max_tokens=2,
            extra_headers={"x-dynamo-request-id": request_id, "X-Dynamo-Session-ID": "conversation-withheld"},
            extra_body={"nvext": {"extra_fields": ["worker_id"]}},
        )
    requests = find_engine_requests(stack, request_id)
    workers = completion.model_extra["nvext"]["worker_id"]  # type: ignore[index]
    assert workers["prefill_dp_rank"] in range(4)
    assert workers["decode_dp_rank"] in range(4)
    assert [request.forced_rank for request in requests.values()] == [None, None]


def test_sub_agents_are_conversations_of_their_own(stack: Stack) -> None:
    """A parent and its two sub-agents have three ids; this release has no parameter for the parent's."""
    for session in ("agent-parent", "agent-child-one", "agent-child-two"):
        parent = {} if session == "agent-parent" else {"X-Dynamo-Parent-Session-ID": "agent-parent"}
        for request in send(stack, session=session, headers=parent).values():
            assert request.conversation_id == session
            assert request.call["kwargs"]["scheduling_params"] is None


def test_request_without_identity_keeps_the_router_rank(stack: Stack) -> None:
    """Without an id there is nothing to pin by, so the router's rank is forced as without affinity."""
    for request in send(stack).values():
        assert request.conversation_id is None
        assert request.forced_rank == request.rank
        assert "no-conversation-id" in request.record.decision.notices
        assert request.record.finish.applied_directive == types_pb2.RANK_DIRECTIVE_FORWARD


def test_kv_events_reach_the_router_and_lead_requests_without_identity(stack: Stack) -> None:
    """The router has indexed what the prefill engine cached, and sends the same prompt to that rank again."""
    before = count_indexed_blocks()
    first = send(stack, text="a prompt that nobody has sent before " * 3)["prefill"]
    wait_for(lambda: count_indexed_blocks() > before or None, "the router to index the prompt")
    second = send(stack, text="a prompt that nobody has sent before " * 3)["prefill"]
    assert second.forced_rank == first.rank
    assert second.call["cached_tokens"] > first.call["cached_tokens"]


def count_indexed_blocks() -> float:
    """Returns how many KV events of stored blocks the frontend's router has taken, by its own metrics."""
    with urllib.request.urlopen(f"{FRONTEND}/metrics") as response:  # noqa: S310  a constant address
        lines = response.read().decode().splitlines()
    stored = [line for line in lines if 'event_type="stored"' in line and 'status="ok"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in stored)


def test_cache_salt_keeps_equal_short_ids_apart(stack: Stack) -> None:
    """The id `1` of two tenants is two derived ids, equal in both phases; the salt reaches the engine."""
    derived = []
    for salt in ("tenant-a", "tenant-b"):
        requests = send(stack, session="1", nvext={"cache_salt": salt})
        ids = {request.conversation_id for request in requests.values()}
        assert len(ids) == 1
        derived.extend(ids)
        assert [request.call["kwargs"]["cache_salt"] for request in requests.values()] == [salt, salt]
    assert all(found.startswith("rh1-") for found in derived)
    assert derived[0] != derived[1]


def test_anthropic_agent_header_names_the_conversation(stack: Stack) -> None:
    """A Claude Code session in a request of the Anthropic package reaches both engines as the id."""
    request_id = new_request_id()
    with anthropic_client() as client:
        client.messages.create(
            model=MODEL,
            max_tokens=2,
            messages=[{"role": "user", "content": "hello"}],
            extra_headers={
                "x-dynamo-request-id": request_id,
                "X-Claude-Code-Session-Id": "0f0e0d0c-0000-4000-8000-000000000001",
            },
        )
    requests = find_engine_requests(stack, request_id)
    assert {request.conversation_id for request in requests.values()} == {
        "0f0e0d0c-0000-4000-8000-000000000001"
    }


def test_a_health_check_runs_on_both_workers_without_an_id(stack: Stack) -> None:
    for worker in stack.workers.values():

        def find_canary(worker: object = worker) -> dict[str, object] | None:
            calls = worker.engine_calls()  # type: ignore[attr-defined]
            return next((c for c in calls if c["kwargs"]["cache_salt"] == "dynamo-health-check"), None)

        canary = wait_for(find_canary, f"a health check of {worker.name}")
        assert canary["conversation_id"] is None
        assert canary["finished"]


def test_cancelled_stream_reaches_the_engine(stack: Stack) -> None:
    """A client that leaves in mid-stream ends the request there, and the finish report says so."""
    request_id = new_request_id()
    with openai_client() as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "count"}],
            max_tokens=4000,
            stream=True,
            extra_headers={
                "x-dynamo-request-id": request_id,
                "X-Dynamo-Session-ID": "conversation-cancelled",
            },
        )
        next(iter(stream))
        stream.close()
    requests = find_engine_requests(stack, request_id)
    assert requests["decode"].call["aborted"]
    assert requests["decode"].record.finish.outcome == service_pb2.FINISH_OUTCOME_CANCELLED


def test_handed_over_parameters_survive_the_codec(stack: Stack) -> None:
    """What prefill hands to decode arrives as it was, and holds nothing of this project."""
    requests = send(stack, session="conversation-handover")
    handed_over = requests["decode"].call["kwargs"]["disaggregated_params"]
    first = requests["prefill"].call["kwargs"]["disaggregated_params"]
    assert handed_over["disagg_request_id"] == first["disagg_request_id"]
    assert base64.b64decode(handed_over["opaque_state"]) == b"fake-engine"
    assert handed_over["ctx_dp_rank"] == requests["prefill"].rank
    assert set(handed_over) == {
        "request_type",
        "first_gen_tokens",
        "ctx_request_id",
        "opaque_state",
        "disagg_request_id",
        "ctx_dp_rank",
    }


def test_each_worker_logs_once_that_affinity_is_active_and_once_that_it_is_confirmed(stack: Stack) -> None:
    """And warns of nothing."""
    converse(stack, "conversation-logged", n_turns=2)
    for phase in PHASES:
        worker = stack.workers[phase]
        (active,) = worker.lines_of("conversation_affinity_active")
        assert "conversation_id_set=True" in active
        assert "attention_dp_rank_forced=False" in active
        assert f"phase={phase}" in active
        assert len(worker.lines_of("conversation_affinity_confirmed")) == 1
        assert not worker.lines_of("conversation_affinity_not_honored")
        assert not worker.lines_of("routing_hints_internal_error")
