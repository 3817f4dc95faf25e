"""Dynamo's aggregated handler and unified backend, and a caller that has HTTP headers and a body instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest

from routing_hints.v1 import types_pb2
from tests.e2e.deployments import PIN_CONVERSATIONS, own_worker_arguments, trtllm_arguments
from tests.e2e.stack import START_TIMEOUT_S, Stack, wait_for
from tests.e2e.traffic import MODEL, await_ready, converse, openai_client, send

CONVERSATION = "conversation_params-1.3.0rc29"


@pytest.fixture
def stack(make_stack: Callable[[], Stack]) -> Iterator[Stack]:
    """A deployment of the test's own."""
    stack = make_stack()
    yield stack
    stack.stop()


def test_dynamos_aggregated_handler_pins_conversations(stack: Stack) -> None:
    """Dynamo's third handler attaches the id too, and keeps the router's rank where there is none."""
    stack.start_frontend("--router-mode", "kv")
    stack.start_worker(
        "aggregated",
        "examples/dynamo_trtllm.py",
        *trtllm_arguments(stack.folder, "agg", PIN_CONVERSATIONS),
        "--publish-kv-events",
        release=CONVERSATION,
    )
    await_ready(stack)
    turns = [turn["aggregated"] for turn in converse(stack, "conversation-aggregated")]
    assert [turn.conversation_id for turn in turns] == ["conversation-aggregated"] * 3
    assert [turn.forced_rank for turn in turns] == [None] * 3
    assert len({turn.rank for turn in turns}) == 1
    assert turns[0].record.phase == types_pb2.PHASE_AGGREGATED
    without_identity = send(stack)["aggregated"]
    assert without_identity.conversation_id is None
    assert without_identity.forced_rank == without_identity.rank


def test_unified_backend_pins_conversations(stack: Stack) -> None:
    """A worker on the unified backend attaches the id and withholds the rank that the router chose."""
    stack.start_frontend("--router-mode", "kv", "--no-router-kv-events")
    stack.start_worker(
        "unified",
        "examples/unified_worker.py",
        *own_worker_arguments(stack.folder, "", PIN_CONVERSATIONS),
        release=CONVERSATION,
    )
    await_ready(stack)
    turns = [turn["unified"] for turn in converse(stack, "conversation-unified")]
    assert [turn.conversation_id for turn in turns] == ["conversation-unified"] * 3
    assert [turn.forced_rank for turn in turns] == [None] * 3
    assert len({turn.rank for turn in turns}) == 1
    without_identity = send(stack)["unified"]
    assert without_identity.forced_rank == without_identity.rank


def test_http_caller_pins_by_header_and_by_body(stack: Stack) -> None:
    """Without Dynamo the id comes from a header, or from `conversation_params` of the body, which wins."""
    arguments = own_worker_arguments(stack.folder, "", PIN_CONVERSATIONS)
    engine_args = arguments[arguments.index("--engine-args") + 1]
    worker = stack.start_worker(
        "http",
        "examples/http_worker.py",
        "--model-path",
        str(stack.model_path),
        "--engine-args",
        engine_args,
        release=CONVERSATION,
    )

    def complete(headers: dict[str, str], body: dict[str, object] | None = None) -> bool | None:
        stack.await_running()
        try:
            with openai_client("http://127.0.0.1:8080") as client:
                client.completions.create(
                    model=MODEL, prompt=list(range(40)), max_tokens=2, extra_headers=headers, extra_body=body
                )
        except openai.APIConnectionError:
            return None
        return True

    wait_for(lambda: complete({}), "the worker to serve", START_TIMEOUT_S)
    worker.take_new_calls()
    for _ in range(2):
        complete({"x-session-id": "conversation-header"})
    complete(
        {"x-session-id": "conversation-header"},
        {"conversation_params": {"conversation_id": "conversation-body"}},
    )
    first, second, third = worker.take_new_calls()
    assert first["conversation_id"] == second["conversation_id"] == "conversation-header"
    assert first["rank"] == second["rank"]
    assert third["conversation_id"] == "conversation-body"
