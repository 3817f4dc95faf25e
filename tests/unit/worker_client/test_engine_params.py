"""Engine parameters in each dialect, built from the strict classes of the fake engine's releases."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from structlog.testing import capture_logs

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    RELEASES,
    SUBAGENT_AFFINITY,
    Release,
)
from routing_hints.v1.service_pb2 import Finish
from tests.support.builders import (
    FORWARD,
    PLACE,
    WITHHOLD,
    build_client,
    build_decision,
    build_profile,
    build_request,
    make_plan,
)
from worker_client import AdpRouter, Affinity, Decision, EngineProfile, EngineTypes, Phase, RankDirective


def schedule(release: Release, rank: int | None, relax: bool | None, **fields: Any) -> Any:
    """Scheduling parameters of a release."""
    return release.scheduling_params(attention_dp_rank=rank, attention_dp_relax=relax, **fields)


def disagg(release: Release, **fields: Any) -> Any:
    """Disaggregated parameters of a context request."""
    return release.disaggregated_params(request_type="context_only", **fields)


async def apply(
    decision: Decision, engine: EngineProfile, rank: int | None = None, **given: Any
) -> tuple[dict[str, Any], Finish]:
    """The engine parameters of one request, and what its finish report states about them."""
    client = build_client(decision)
    async with client.plan(build_request(rank=rank), phase=Phase.PREFILL, engine=engine) as plan:
        kwargs = plan.engine_kwargs(**given)
    return kwargs, client.finishes[0]


async def test_the_conversation_params_dialect_attaches_the_id_in_its_own_argument_and_sends_no_rank() -> (
    None
):
    params = disagg(CONVERSATION_PARAMS)
    plan = await make_plan(build_decision(WITHHOLD, "c"), build_profile(), request=build_request(rank=2))
    assert plan.engine_kwargs(disaggregated_params=params) == {
        "disaggregated_params": params,
        "scheduling_params": None,
        "conversation_params": CONVERSATION_PARAMS.conversation_params(conversation_id="c"),
    }


@pytest.mark.parametrize("release", [RANK_ONLY, DISAGGREGATED_PARAMS], ids=lambda r: r.name)
async def test_older_dialects_are_never_passed_the_keyword(release: Release) -> None:
    """An older `generate_async` does not have `conversation_params`, not even as None."""
    plan = await make_plan(build_decision(WITHHOLD, "c"), build_profile(release))
    assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}


async def test_the_newest_dialect_is_passed_the_keyword_only_with_an_id() -> None:
    """Blank ids are refused by the engine, so none is made up."""
    plan = await make_plan(build_decision(FORWARD), build_profile())
    assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}


async def test_the_disaggregated_params_dialect_sets_the_id_on_a_copy() -> None:
    given = disagg(DISAGGREGATED_PARAMS, opaque_state=b"s", ctx_dp_rank=1, first_gen_tokens=[7])
    before = asdict(given)
    kwargs, finish = await apply(
        build_decision(WITHHOLD, "c"), build_profile(DISAGGREGATED_PARAMS), disaggregated_params=given
    )
    assert asdict(kwargs["disaggregated_params"]) == {**before, "conversation_id": "c"}
    assert asdict(given) == before
    assert (finish.id_attached, finish.local_reason) == (True, "")


async def test_a_copy_is_not_validated_again() -> None:
    """Values that only the engine sets may break its own constructor's rules."""
    given = disagg(DISAGGREGATED_PARAMS)
    given.request_type = "SET_BY_THE_ENGINE"
    plan = await make_plan(build_decision(WITHHOLD, "c"), build_profile(DISAGGREGATED_PARAMS))
    sent = plan.engine_kwargs(disaggregated_params=given)["disaggregated_params"]
    assert (sent.request_type, sent.conversation_id) == ("SET_BY_THE_ENGINE", "c")


@pytest.mark.parametrize("decided", ["new", None])
async def test_a_stale_id_is_overwritten_or_cleared(decided: str | None) -> None:
    """An id that came along from another phase never reaches the engine."""
    given = disagg(DISAGGREGATED_PARAMS, conversation_id="stale")
    directive = WITHHOLD if decided else FORWARD
    plan = await make_plan(build_decision(directive, decided), build_profile(DISAGGREGATED_PARAMS))
    sent = plan.engine_kwargs(disaggregated_params=given)["disaggregated_params"]
    assert (sent.conversation_id, given.conversation_id) == (decided, "stale")


@pytest.mark.parametrize(
    ("release", "reason"),
    [(RANK_ONLY, "dialect-cannot-carry-id"), (DISAGGREGATED_PARAMS, "no-disaggregated-params")],
    ids=["rank_only", "disaggregated_params"],
)
async def test_withhold_without_the_id_attached_is_forward(release: Release, reason: str) -> None:
    """Withholding would lose both kinds of placement."""
    kwargs, finish = await apply(build_decision(WITHHOLD, "c"), build_profile(release), rank=2)
    assert kwargs["scheduling_params"] == schedule(release, 2, False)
    assert (finish.applied_directive, finish.id_attached, finish.local_reason) == (FORWARD, False, reason)


async def test_a_rank_is_withheld_from_the_kv_cache_aware_router_without_an_id() -> None:
    """That router probes the caches, which a rank would bypass."""
    engine = build_profile(RANK_ONLY, adp_router=AdpRouter.KV_CACHE_AWARE)
    plan = await make_plan(build_decision(WITHHOLD), engine, request=build_request(rank=2))
    assert plan.engine_kwargs() == {"disaggregated_params": None, "scheduling_params": None}
    assert plan.applied_directive is WITHHOLD


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
@pytest.mark.parametrize(
    ("decision", "rank", "relax"),
    [
        (build_decision(FORWARD), 2, False),
        (build_decision(PLACE, dp_rank=1), 1, True),
    ],
    ids=["router", "sidecar"],
)
async def test_relax_is_false_with_the_routers_rank_and_true_with_the_sidecars(
    release: Release, decision: Decision, rank: int, relax: bool
) -> None:
    """As in Dynamo for its rank; ours the engine may overrule where there is no room."""
    plan = await make_plan(decision, build_profile(release), request=build_request(rank=2))
    assert plan.engine_kwargs()["scheduling_params"] == schedule(release, rank, relax)


@pytest.mark.parametrize(
    ("directive", "given", "sent"),
    [
        (FORWARD, (None, None), (2, False)),
        (FORWARD, (3, None), (3, False)),
        (FORWARD, (3, True), (3, True)),
        (WITHHOLD, (3, None), (None, True)),
        (WITHHOLD, (3, False), (None, True)),
        (WITHHOLD, (None, None), (None, True)),
        (PLACE, (3, False), (1, True)),
    ],
)
async def test_a_given_schedule_is_copied_and_its_relax_is_a_boolean(
    directive: RankDirective, given: tuple[int | None, bool | None], sent: tuple[int | None, bool]
) -> None:
    """The worker's own rank is kept where the router's would be; None would break the engine's sort."""
    release = DISAGGREGATED_PARAMS
    own = schedule(release, *given)
    decision = build_decision(directive, "c", dp_rank=1 if directive is PLACE else None)
    plan = await make_plan(decision, build_profile(release), request=build_request(rank=2))
    kwargs = plan.engine_kwargs(disaggregated_params=disagg(release), scheduling_params=own)
    assert kwargs["scheduling_params"] == schedule(release, *sent)
    assert own == schedule(release, *given)


async def test_other_fields_of_a_given_schedule_are_kept() -> None:
    own = schedule(CONVERSATION_PARAMS, 3, False, agent_hierarchy=[("a", 1)])
    plan = await make_plan(build_decision(WITHHOLD, "c"), build_profile())
    sent = plan.engine_kwargs(scheduling_params=own)["scheduling_params"]
    assert sent == schedule(CONVERSATION_PARAMS, None, True, agent_hierarchy=[("a", 1)])


async def test_a_routers_ranks_out_of_range_are_dropped_with_one_warning() -> None:
    """A bad rank would end the engine."""
    client = build_client(build_decision(FORWARD, conversation_hash=""))
    with capture_logs() as lines:
        for rank in (4, 65_535, -1, 2**40):
            plan = await make_plan(None, build_profile(), request=build_request(rank=rank), client=client)
            assert plan.engine_kwargs()["scheduling_params"] is None
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "attention_dp_rank_dropped"
    ]
    assert client.stats()["router_rank_dropped"] == {"": 4}


@pytest.mark.parametrize("rank", [4, None])
async def test_a_placed_rank_out_of_range_is_forward(rank: int | None) -> None:
    kwargs, finish = await apply(build_decision(PLACE, dp_rank=rank), build_profile(), rank=2)
    assert kwargs["scheduling_params"] == schedule(CONVERSATION_PARAMS, 2, False)
    assert (finish.applied_directive, finish.local_reason) == (FORWARD, "placed-rank-out-of-range")


@pytest.mark.parametrize(
    ("affinity_key", "sent"), [("parent", "parent"), ("c", None), (None, None)], ids=["child", "self", "none"]
)
async def test_the_subagent_key_is_sent_where_it_differs_from_the_id(
    affinity_key: str | None, sent: str | None
) -> None:
    engine = build_profile(SUBAGENT_AFFINITY, subagent_affinity=True)
    plan = await make_plan(build_decision(WITHHOLD, "c", affinity_key=affinity_key), engine)
    params = plan.engine_kwargs()["scheduling_params"]
    assert getattr(params, "subagent_affinity_id", None) == sent
    assert params is None or (params.attention_dp_rank, params.attention_dp_relax) == (None, True)


async def test_the_subagent_key_is_not_sent_to_an_engine_without_the_parameter() -> None:
    """Its strict class would refuse it."""
    plan = await make_plan(build_decision(WITHHOLD, "c", affinity_key="parent"), build_profile())
    assert plan.engine_kwargs()["scheduling_params"] is None


async def test_an_id_that_the_engine_refuses_is_not_attached_and_the_rank_is_forwarded() -> None:
    """`ConversationParams` raises ValueError for a blank id."""
    kwargs, finish = await apply(build_decision(WITHHOLD, " "), build_profile(), rank=2)
    assert "conversation_params" not in kwargs
    assert kwargs["scheduling_params"] == schedule(CONVERSATION_PARAMS, 2, False)
    assert (finish.id_attached, finish.local_reason) == (False, "engine-refused-id")


async def test_a_rank_that_could_not_be_sent_is_not_reported_as_placed() -> None:
    engine = build_profile(types=EngineTypes())
    kwargs, finish = await apply(build_decision(PLACE, dp_rank=1), engine)
    assert kwargs["scheduling_params"] is None
    assert (finish.applied_directive, finish.local_reason) == (FORWARD, "tensorrt-llm-not-importable")


@pytest.mark.parametrize(("rank", "expected"), [(2, (2, False)), (None, None)])
async def test_with_the_gate_off_the_routers_rank_is_forwarded_and_nothing_else_changes(
    rank: int | None, expected: tuple[int, bool] | None
) -> None:
    """As Dynamo's own worker: even an id that the worker put there itself stays."""
    given = disagg(DISAGGREGATED_PARAMS, conversation_id="the worker's own")
    client = build_client(build_decision(WITHHOLD, "c"), affinity=Affinity.OFF)
    engine = build_profile(DISAGGREGATED_PARAMS)
    plan = await make_plan(None, engine, request=build_request(rank=rank), client=client)
    kwargs = plan.engine_kwargs(disaggregated_params=given)
    assert kwargs["disaggregated_params"] is given
    assert given.conversation_id == "the worker's own"
    assert kwargs["scheduling_params"] == (expected and schedule(DISAGGREGATED_PARAMS, *expected))
    assert (client.requests, client.finishes) == ([], [])
