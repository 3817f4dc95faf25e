"""The same requests through Dynamo's handlers as they are and as adopted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployments import PHASES, start_dynamo_handlers
from tests.e2e.stack import Stack
from tests.e2e.traffic import send

RELEASE = "conversation_params-1.3.0rc29"
LONG_ID = "conversation-0123456789abcdef"
FROM_ROUTER = {"attention_dp_rank": "the router's", "attention_dp_relax": False}

Calls = dict[str, dict[str, dict[str, Any]]]


def upstream_script() -> str:
    """Returns the path of what `python -m dynamo.trtllm` runs."""
    spec = importlib.util.find_spec("dynamo.trtllm")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "__main__.py")


def send_requests(stack: Stack) -> Calls:
    """Returns the engine arguments of each request by name and phase, without what no two requests share."""
    requests = {
        "new conversation": send(stack, session=LONG_ID),
        "second turn": send(stack, session=LONG_ID),
        "sub-agent": send(stack, session=f"{LONG_ID}-child", headers={"X-Dynamo-Parent-Session-ID": LONG_ID}),
        "cache salt": send(stack, session=LONG_ID, nvext={"cache_salt": "tenant-a"}),
        "no identity": send(stack),
    }
    return {
        name: {phase: comparable(found.call["kwargs"]) for phase, found in by_phase.items()}
        for name, by_phase in requests.items()
    }


def comparable(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns engine arguments without request ids, tokens and which rank it was."""
    result = {name: value for name, value in kwargs.items() if name != "disaggregated_params"}
    result["handed over"] = sorted(kwargs["disaggregated_params"])
    scheduling = dict(kwargs["scheduling_params"] or {})
    if scheduling:
        scheduling["attention_dp_rank"] = "the router's"
        result["scheduling_params"] = scheduling
    if result.get("conversation_params", "absent") is None:
        del result["conversation_params"]  # Dynamo passes None where there is no id, which means the same
    return result


@pytest.fixture(scope="module")
def upstream(make_stack: Callable[[], Stack]) -> Calls:
    """What Dynamo's handlers do as they are."""
    stack = make_stack()
    start_dynamo_handlers(stack, "--publish-kv-events", release=RELEASE, script=upstream_script())
    calls = send_requests(stack)
    stack.stop()
    return calls


@pytest.fixture(scope="module")
def adopted_stack(upstream: Calls, make_stack: Callable[[], Stack]) -> Stack:
    """The same deployment with the client; the peer is gone, both use the same port."""
    stack = make_stack()
    start_dynamo_handlers(stack, "--publish-kv-events", release=RELEASE)
    return stack


@pytest.fixture(scope="module")
def adopted(adopted_stack: Stack) -> Calls:
    """What Dynamo's handlers do with the client."""
    return send_requests(adopted_stack)


@pytest.mark.parametrize("request_name", ["new conversation", "second turn", "sub-agent", "cache salt"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_conversation_gets_the_engine_call_that_dynamo_makes(
    upstream: Calls, adopted: Calls, request_name: str, phase: str
) -> None:
    assert upstream[request_name][phase]["conversation_params"]
    assert adopted[request_name][phase] == upstream[request_name][phase]


@pytest.mark.parametrize("phase", PHASES)
def test_the_rank_of_a_request_without_an_id_is_the_only_difference(
    upstream: Calls, adopted: Calls, phase: str
) -> None:
    """Without an id Dynamo drops the router's rank; here it is kept."""
    assert upstream["no identity"][phase]["scheduling_params"] is None
    assert adopted["no identity"][phase] == {
        **upstream["no identity"][phase],
        "scheduling_params": FROM_ROUTER,
    }


def test_requests_stay_on_the_push_path(adopted: Calls, adopted_stack: Stack) -> None:
    """Dynamo logs it if it serves a request on the slower pull path."""
    for worker in adopted_stack.workers.values():
        assert "Engine ID map" in worker.log
        assert "no response_sender" not in worker.log
