"""A plan's life: how it ends, what is reported of it, and that internal errors are felt by no request."""

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
from tests.support import strategies
from tests.support.builders import (
    ENGINE,
    WITHHOLD,
    build_client,
    build_decision,
    build_output,
    build_request,
    make_plan,
)
from worker_client import (
    Affinity,
    Decision,
    EngineProfile,
    EngineSource,
    FinishOutcome,
    Origin,
    Phase,
    Plan,
    RankDirective,
    RequestKind,
)
from worker_client.testing import FakeClient

CONTEXT = SimpleNamespace(id=lambda: "request-1")


async def test_a_finish_report_has_what_became_of_the_request() -> None:
    client = build_client(build_decision(WITHHOLD, "c", decision_id="d-1"))
    async with client.plan(build_request(), CONTEXT, phase=Phase.PREFILL, engine=ENGINE) as plan:
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


async def test_the_finish_report_of_an_unused_plan_claims_nothing() -> None:
    """Absent is not zero."""
    client = build_client(build_decision(WITHHOLD, "c"))
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE):
        pass
    finish = client.finishes[0]
    assert (finish.applied_directive, finish.id_attached) == (types_pb2.RANK_DIRECTIVE_UNSPECIFIED, False)
    assert not finish.HasField("observed_dp_rank")
    assert not finish.HasField("cached_tokens")


async def test_a_finish_report_names_the_reason_of_the_clients_own_decision() -> None:
    client = build_client(None)
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE) as plan:
        plan.engine_kwargs()
    assert plan.decision.origin is Origin.LOCAL_RULE
    assert (client.finishes[0].local_reason, client.finishes[0].decision_id) == ("fake-unavailable", "")


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
async def test_the_block_ends_the_request_however_it_is_left_and_lets_the_exception_through(
    error: BaseException, outcome: int
) -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    with pytest.raises(type(error)):
        async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE):
            raise error
    assert [finish.outcome for finish in client.finishes] == [outcome]


async def test_only_the_first_finish_counts() -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE) as plan:
        plan.finish(FinishOutcome.FAILED)
        plan.finish()
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_FAILED]


async def test_an_awaited_plan_is_ended_by_its_caller() -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
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
async def test_a_request_that_is_not_decided_about_forwards_the_routers_rank_and_sends_nothing(
    options: dict[str, Any], reason: str
) -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    options = {"phase": Phase.PREFILL, "engine": ENGINE, **options}
    plan = await client.plan(build_request(rank=2), **options)
    plan.finish()
    assert plan.engine_kwargs()["scheduling_params"].attention_dp_rank == 2
    assert (plan.reason, client.requests, client.finishes) == (reason, [], [])
    assert client.stats()["skipped_requests"] == {reason: 1}


def test_the_public_names_of_a_plan_are_pinned() -> None:
    assert {name for name in dir(Plan) if not name.startswith("_")} == {
        "applied_directive",
        "conversation_hash",
        "conversation_id",
        "decision",
        "engine_kwargs",
        "finish",
        "is_decided",
        "notices",
        "observe",
        "observed_rank",
        "phase",
        "reason",
    }


async def test_a_plan_shows_what_was_decided_applied_and_observed() -> None:
    decision = build_decision(WITHHOLD, "c", notices=("session-final",))
    plan = await make_plan(decision, ENGINE, request=build_request(rank=65_536), phase=Phase.DECODE)
    assert (plan.phase, plan.decision, plan.reason, plan.is_decided) == (Phase.AGGREGATED, decision, "", True)
    assert (plan.conversation_id, plan.conversation_hash) == ("c", "0123456789abcdef")
    assert plan.notices == ("session-final", "router-rank-out-of-range")
    assert (plan.applied_directive, plan.observed_rank) == (RankDirective.UNSPECIFIED, None)
    plan.engine_kwargs()
    plan.observe(build_output(3))
    assert (plan.applied_directive, plan.observed_rank) == (WITHHOLD, 3)


@pytest.mark.parametrize(
    ("make_client", "engine", "kind", "is_decided"),
    [
        (lambda: build_client(None), ENGINE, RequestKind.NORMAL, True),
        (lambda: build_client(None), ENGINE, RequestKind.WARMUP, False),
        (lambda: build_client(None, affinity=Affinity.OFF), ENGINE, RequestKind.NORMAL, False),
        (lambda: build_client(None), EngineProfile.lazy(lambda: None), RequestKind.NORMAL, False),
        (lambda: FakeClient(raise_on_decide), ENGINE, RequestKind.NORMAL, False),
    ],
    ids=["local-rule", "warm-up", "gate-off", "no-engine", "internal-error"],
)
async def test_a_plan_that_the_local_rule_decided_is_decided_and_one_that_only_forwards_is_not(
    make_client: Callable[[], FakeClient], engine: EngineSource, kind: RequestKind, is_decided: bool
) -> None:
    plan = await make_client().plan(build_request(), phase=Phase.PREFILL, engine=engine, kind=kind)
    assert plan.is_decided is is_decided


class BrokenEngine:
    """An engine source that breaks its promise not to raise."""

    def current(self) -> Any:
        raise RuntimeError("raw-conversation-id")


def raise_on_decide(facts: object, engine: object) -> Decision | None:
    raise LookupError("raw-conversation-id")


@pytest.mark.parametrize(
    ("make_client", "engine", "error"),
    [
        (lambda: build_client(None), BrokenEngine(), "RuntimeError"),
        (lambda: FakeClient(raise_on_decide), ENGINE, "LookupError"),
    ],
    ids=["engine", "decision"],
)
async def test_internal_errors_are_counted_logged_once_and_felt_by_no_request(
    make_client: Callable[[], FakeClient], engine: Any, error: str
) -> None:
    """By type and place, without the text, which may hold values of the request."""
    client = make_client()
    with capture_logs() as lines:
        for _ in range(3):
            plan = await client.plan(build_request(rank=2), phase=Phase.PREFILL, engine=engine)
            assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}
            plan.finish()
    assert plan.reason == "client-internal-error"
    assert client.stats()["internal_errors"] == {error: 3}
    internal_errors = [line for line in lines if line["event"] == "routing_hints_internal_error"]
    assert [(line["log_level"], line["error"]) for line in internal_errors] == [("error", error)]
    assert "raw-conversation-id" not in repr(lines)


async def test_parameters_that_can_not_be_assembled_are_the_callers_own() -> None:
    plan = await make_plan(build_decision(WITHHOLD, "c"), ENGINE)
    odd = strategies.Awkward()
    kwargs = plan.engine_kwargs(disaggregated_params=odd, scheduling_params=odd)
    assert kwargs["disaggregated_params"] is odd
    assert kwargs["scheduling_params"] is odd


async def test_leaving_a_block_that_was_never_entered_does_nothing() -> None:
    client = build_client(None)
    pending = client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE)
    await pending.__aexit__(None, None, None)
    assert client.finishes == []


async def test_a_request_is_not_changed_by_its_plan() -> None:
    request = build_request(rank=2)
    before = copy.deepcopy(request)
    plan = await make_plan(build_decision(WITHHOLD, "c"), ENGINE, request=request)
    plan.engine_kwargs()
    plan.finish()
    assert request == before


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=strategies.requests, context=strategies.contexts, output=strategies.json_like)
def test_no_request_raises_anywhere_on_its_path(request: object, context: object, output: object) -> None:
    async def serve() -> None:
        client = build_client(None)
        with capture_logs():
            async with client.plan(request, context, phase=Phase.DECODE, engine=ENGINE) as plan:
                assert {"disaggregated_params", "scheduling_params"} <= set(plan.engine_kwargs())
                plan.observe(output)
        assert plan.reason != "client-internal-error"

    asyncio.run(serve())
