"""A plan's life: how it ends, what is reported of it, and that defects are counted and not felt."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from structlog.testing import capture_logs

from routing_hints.v1 import service_pb2, types_pb2
from tests import strategies
from tests.support.builders import build_answer, build_profile, build_request, make_plan
from tests.unit.worker_client.test_observation import build_output
from worker_client import Answer, FinishOutcome, Origin, Phase, RankDirective, RequestKind
from worker_client.testing import FakeClient

WITHHOLD = RankDirective.WITHHOLD
CONTEXT = SimpleNamespace(id=lambda: "request-1")


def client_of(answer: Answer | None) -> FakeClient:
    """A client whose sidecar always says that; None is silence."""
    return FakeClient(lambda facts, engine: answer)


async def test_finish_says_what_became_of_the_request() -> None:
    """Request, leg, decision, what was applied, and what was observed."""
    client = client_of(build_answer(WITHHOLD, "c", decision_id="d-1"))
    async with client.plan(build_request(), CONTEXT, phase=Phase.PREFILL, engine=build_profile()) as plan:
        plan.engine_kwargs()
        plan.observe(build_output(3, 64))
    assert client.finishes == [
        service_pb2.Finish(
            request_id="request-1",
            phase=types_pb2.PHASE_PREFILL,
            decision_id="d-1",
            outcome=service_pb2.FINISH_OUTCOME_COMPLETED,
            applied_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
            id_attached=True,
            observed_dp_rank=3,
            cached_tokens=64,
        )
    ]


async def test_finish_of_an_unused_plan_claims_nothing() -> None:
    """No parameters were asked for, nothing was observed: absent is not zero."""
    client = client_of(build_answer(WITHHOLD, "c"))
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile()):
        pass
    finish = client.finishes[0]
    assert (finish.applied_directive, finish.id_attached) == (types_pb2.RANK_DIRECTIVE_UNSPECIFIED, False)
    assert not finish.HasField("observed_dp_rank")
    assert not finish.HasField("cached_tokens")


async def test_finish_names_the_local_reason() -> None:
    """Why the client answered itself."""
    client = client_of(None)
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile()) as plan:
        plan.engine_kwargs()
    assert plan.answer.origin is Origin.LOCAL_RULE
    assert (client.finishes[0].local_reason, client.finishes[0].decision_id) == ("fake-silence", "")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError(), service_pb2.FINISH_OUTCOME_FAILED),
        (asyncio.CancelledError(), service_pb2.FINISH_OUTCOME_CANCELLED),
        (GeneratorExit(), service_pb2.FINISH_OUTCOME_CANCELLED),
        (KeyboardInterrupt(), service_pb2.FINISH_OUTCOME_FAILED),
    ],
    ids=["exception", "cancelled", "generator-exit", "interrupt"],
)
async def test_block_ends_the_request_however_it_is_left(error: BaseException, outcome: int) -> None:
    """And lets the exception through."""
    client = client_of(build_answer(WITHHOLD, "c"))
    with pytest.raises(type(error)):
        async with client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile()):
            raise error
    assert [finish.outcome for finish in client.finishes] == [outcome]


async def test_only_the_first_finish_counts() -> None:
    """Whoever ends it early ends it for good."""
    client = client_of(build_answer(WITHHOLD, "c"))
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile()) as plan:
        plan.finish(FinishOutcome.FAILED)
        plan.finish()
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_FAILED]


async def test_awaited_plan_is_ended_by_its_caller() -> None:
    """For callers without a block."""
    client = client_of(build_answer(WITHHOLD, "c"))
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    assert client.finishes == []
    plan.finish()
    assert len(client.finishes) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": RequestKind.WARMUP}, "kind-warmup"),
        ({"kind": RequestKind.HEALTH_CHECK}, "kind-health-check"),
        ({"phase": Phase.UNSPECIFIED}, "phase-unknown"),
    ],
)
async def test_what_is_not_asked_about_forwards_the_routers_rank(
    options: dict[str, Any], reason: str
) -> None:
    """No state is touched and nothing is sent."""
    client = client_of(build_answer(WITHHOLD, "c"))
    options = {"phase": Phase.PREFILL, "engine": build_profile(), **options}
    plan = await client.plan(build_request(rank=2), **options)
    plan.finish()
    assert plan.engine_kwargs()["scheduling_params"].attention_dp_rank == 2
    assert (plan.reason, client.questions, client.finishes) == (reason, [], [])
    assert client.stats()["not_asked"] == {reason: 1}


class BrokenEngine:
    """An engine source that breaks its word not to raise."""

    def current(self) -> Any:
        """Raises."""
        raise RuntimeError("raw-conversation-id")


def raise_on_ask(facts: object, engine: object) -> Answer | None:
    """A sidecar that is a defect."""
    raise LookupError("raw-conversation-id")


@pytest.mark.parametrize(
    ("make_client", "engine", "error"),
    [
        (lambda: client_of(None), BrokenEngine(), "RuntimeError"),
        (lambda: FakeClient(raise_on_ask), build_profile(), "LookupError"),
    ],
    ids=["engine", "answer"],
)
async def test_defects_are_counted_logged_once_and_not_felt(
    make_client: Callable[[], FakeClient], engine: Any, error: str
) -> None:
    """By type and place, without the text, which may hold values of the request."""
    client = make_client()
    with capture_logs() as lines:
        for _ in range(3):
            plan = await client.plan(build_request(rank=2), phase=Phase.PREFILL, engine=engine)
            assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}
            plan.finish()
    assert plan.reason == "client-defect"
    assert client.stats()["defects"] == {error: 3}
    defects = [line for line in lines if line["event"] == "routing_hints_defect"]
    assert [(line["log_level"], line["error"]) for line in defects] == [("error", error)]
    assert "raw-conversation-id" not in repr(lines)


async def test_parameters_that_can_not_be_assembled_are_the_callers_own() -> None:
    """The engine call goes on with what the worker gave."""
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile())
    odd = strategies.Awkward()
    kwargs = plan.engine_kwargs(disaggregated_params=odd, scheduling_params=odd)
    assert kwargs["disaggregated_params"] is odd
    assert kwargs["scheduling_params"] is odd


async def test_context_manager_is_reusable_for_nothing_but_its_own_request() -> None:
    """Leaving a block that was never entered does nothing."""
    client = client_of(None)
    pending = client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    await pending.__aexit__(None, None, None)
    assert client.finishes == []


async def test_request_is_not_changed_by_its_plan() -> None:
    """The worker's dict goes on to the engine as it came."""
    request = build_request(rank=2)
    before = copy.deepcopy(request)
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(), request=request)
    plan.engine_kwargs()
    plan.finish()
    assert request == before


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=strategies.requests, context=strategies.contexts, output=strategies.json_like)
def test_no_request_raises_anywhere_on_its_path(request: object, context: object, output: object) -> None:
    """Whatever the worker was handed, there are parameters and an end."""

    async def serve() -> None:
        client = client_of(None)
        with capture_logs():
            async with client.plan(request, context, phase=Phase.DECODE, engine=build_profile()) as plan:
                assert {"disaggregated_params", "scheduling_params"} <= set(plan.engine_kwargs())
                plan.observe(output)
        assert plan.reason != "client-defect"

    asyncio.run(serve())
