"""Engine parameters in each dialect, built from the strict classes of the stand-in's releases."""

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
from tests.support.builders import build_answer, build_profile, build_request, make_plan
from worker_client import AdpRouter, Affinity, Answer, ClientConfig, EngineTypes, RankDirective
from worker_client.testing import FakeClient

FORWARD, WITHHOLD, PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE


def schedule(release: Release, rank: int | None, relax: bool | None, **fields: Any) -> Any:
    """Scheduling parameters of a release."""
    return release.scheduling_params(attention_dp_rank=rank, attention_dp_relax=relax, **fields)


def disagg(release: Release, **fields: Any) -> Any:
    """Disaggregated parameters of a context request."""
    return release.disaggregated_params(request_type="context_only", **fields)


async def test_conversation_params_dialect_attaches_and_withholds() -> None:
    """The id goes into its own argument, no rank is sent, the caller's object passes through."""
    params = disagg(CONVERSATION_PARAMS)
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(), request=build_request(rank=2))
    assert plan.engine_kwargs(disaggregated_params=params) == {
        "disaggregated_params": params,
        "scheduling_params": None,
        "conversation_params": CONVERSATION_PARAMS.conversation_params(conversation_id="c"),
    }


@pytest.mark.parametrize("release", [RANK_ONLY, DISAGGREGATED_PARAMS], ids=lambda r: r.name)
async def test_older_dialects_never_get_the_keyword(release: Release) -> None:
    """An older `generate_async` does not know `conversation_params`, not even as None."""
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(release))
    assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}


async def test_newest_dialect_gets_the_keyword_only_with_an_id() -> None:
    """Blank ids are refused by the engine, so none is made up."""
    plan = await make_plan(build_answer(FORWARD), build_profile())
    assert set(plan.engine_kwargs()) == {"disaggregated_params", "scheduling_params"}


async def test_disaggregated_params_dialect_sets_the_id_on_a_copy() -> None:
    """All other fields are kept and the caller's object stays as it was."""
    given = disagg(DISAGGREGATED_PARAMS, opaque_state=b"s", ctx_dp_rank=1, first_gen_tokens=[7])
    before = asdict(given)
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(DISAGGREGATED_PARAMS))
    sent = plan.engine_kwargs(disaggregated_params=given)["disaggregated_params"]
    assert asdict(sent) == {**before, "conversation_id": "c"}
    assert asdict(given) == before
    assert plan.params is not None
    assert plan.params.id_attached is True


async def test_copying_does_not_validate_again() -> None:
    """Values that only the engine sets may break its own constructor's rules."""
    given = disagg(DISAGGREGATED_PARAMS)
    given.request_type = "SET_BY_THE_ENGINE"
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(DISAGGREGATED_PARAMS))
    sent = plan.engine_kwargs(disaggregated_params=given)["disaggregated_params"]
    assert (sent.request_type, sent.conversation_id) == ("SET_BY_THE_ENGINE", "c")


@pytest.mark.parametrize("answered", ["new", None])
async def test_stale_id_is_overwritten_or_cleared(answered: str | None) -> None:
    """An id that came along from another leg never reaches the engine."""
    given = disagg(DISAGGREGATED_PARAMS, conversation_id="stale")
    directive = WITHHOLD if answered else FORWARD
    plan = await make_plan(build_answer(directive, answered), build_profile(DISAGGREGATED_PARAMS))
    sent = plan.engine_kwargs(disaggregated_params=given)["disaggregated_params"]
    assert (sent.conversation_id, given.conversation_id) == (answered, "stale")


@pytest.mark.parametrize("release", [RANK_ONLY, DISAGGREGATED_PARAMS], ids=lambda r: r.name)
async def test_withhold_without_the_id_attached_is_forward(release: Release) -> None:
    """Withholding would lose both kinds of placement."""
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile(release), request=build_request(rank=2))
    assert plan.engine_kwargs()["scheduling_params"] == schedule(release, 2, False)
    assert plan.params is not None
    assert (plan.params.applied_directive, plan.params.id_attached) == (FORWARD, False)
    assert (
        plan.params.reason
        == {
            "rank_only": "dialect-cannot-carry-id",
            "disaggregated_params": "no-disaggregated-params",
        }[release.name]
    )


async def test_kv_cache_aware_router_is_withheld_from_without_an_id() -> None:
    """That router probes the caches, and a rank would bypass it."""
    engine = build_profile(RANK_ONLY, adp_router=AdpRouter.KV_CACHE_AWARE)
    plan = await make_plan(build_answer(WITHHOLD), engine, request=build_request(rank=2))
    assert plan.engine_kwargs() == {"disaggregated_params": None, "scheduling_params": None}
    assert plan.applied_directive is WITHHOLD


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
@pytest.mark.parametrize(
    ("answer", "rank", "relax"),
    [
        (build_answer(FORWARD), 2, False),
        (build_answer(PLACE, dp_rank=1), 1, True),
    ],
    ids=["router", "sidecar"],
)
async def test_relax_is_false_with_the_routers_rank_and_true_with_ours(
    release: Release, answer: Answer, rank: int, relax: bool
) -> None:
    """Dynamo's parity for its rank; ours the engine may overrule where there is no room."""
    plan = await make_plan(answer, build_profile(release), request=build_request(rank=2))
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
async def test_given_schedule_is_copied_and_its_relax_is_a_boolean(
    directive: RankDirective, given: tuple[int | None, bool | None], sent: tuple[int | None, bool]
) -> None:
    """The worker's own rank is kept where the router's would be; None never reaches the engine's sort."""
    release = DISAGGREGATED_PARAMS
    own = schedule(release, *given)
    answer = build_answer(directive, "c", dp_rank=1 if directive is PLACE else None)
    plan = await make_plan(answer, build_profile(release), request=build_request(rank=2))
    kwargs = plan.engine_kwargs(disaggregated_params=disagg(release), scheduling_params=own)
    assert kwargs["scheduling_params"] == schedule(release, *sent)
    assert own == schedule(release, *given)


async def test_other_fields_of_a_given_schedule_are_kept() -> None:
    """Only the rank is ours."""
    own = schedule(CONVERSATION_PARAMS, 3, False, agent_hierarchy=[("a", 1)])
    plan = await make_plan(build_answer(WITHHOLD, "c"), build_profile())
    sent = plan.engine_kwargs(scheduling_params=own)["scheduling_params"]
    assert sent == schedule(CONVERSATION_PARAMS, None, True, agent_hierarchy=[("a", 1)])


async def test_router_ranks_out_of_range_are_dropped_with_one_warning() -> None:
    """A bad rank would end the engine."""
    client = FakeClient(lambda facts, engine: build_answer(FORWARD, conversation_hash=""))
    with capture_logs() as lines:
        for rank in (4, 65_535, -1, 2**40):
            plan = await make_plan(None, build_profile(), request=build_request(rank=rank), client=client)
            assert plan.engine_kwargs()["scheduling_params"] is None
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "attention_dp_rank_dropped"
    ]
    assert client.stats()["router_rank_dropped"] == {"": 4}


@pytest.mark.parametrize("rank", [4, None])
async def test_placed_rank_out_of_range_is_forward(rank: int | None) -> None:
    """Nor is a sidecar believed that places where there is nothing."""
    plan = await make_plan(build_answer(PLACE, dp_rank=rank), build_profile(), request=build_request(rank=2))
    assert plan.engine_kwargs()["scheduling_params"] == schedule(CONVERSATION_PARAMS, 2, False)
    assert plan.params is not None
    assert (plan.params.applied_directive, plan.params.reason) == (FORWARD, "placed-rank-out-of-range")


@pytest.mark.parametrize(
    ("affinity_key", "sent"), [("parent", "parent"), ("c", None), (None, None)], ids=["child", "self", "none"]
)
async def test_subagent_key_is_sent_where_it_differs(affinity_key: str | None, sent: str | None) -> None:
    """A child names its parent; nobody names itself."""
    engine = build_profile(SUBAGENT_AFFINITY, subagent_affinity=True)
    plan = await make_plan(build_answer(WITHHOLD, "c", affinity_key=affinity_key), engine)
    params = plan.engine_kwargs()["scheduling_params"]
    assert getattr(params, "subagent_affinity_id", None) == sent
    assert params is None or (params.attention_dp_rank, params.attention_dp_relax) == (None, True)


async def test_subagent_key_is_not_sent_to_an_engine_without_the_parameter() -> None:
    """Its strict class would refuse it."""
    plan = await make_plan(build_answer(WITHHOLD, "c", affinity_key="parent"), build_profile())
    assert plan.engine_kwargs()["scheduling_params"] is None


async def test_id_that_the_engine_refuses_is_not_attached_and_the_rank_is_forwarded() -> None:
    """`ConversationParams` raises ValueError for a blank id."""
    plan = await make_plan(build_answer(WITHHOLD, " "), build_profile(), request=build_request(rank=2))
    kwargs = plan.engine_kwargs()
    assert "conversation_params" not in kwargs
    assert kwargs["scheduling_params"] == schedule(CONVERSATION_PARAMS, 2, False)
    assert plan.params is not None
    assert plan.params.reason == "engine-refused-id"


async def test_rank_that_could_not_be_sent_is_not_reported_as_placed() -> None:
    """Without the engine's classes nothing can be built, and the report says so."""
    engine = build_profile(types=EngineTypes())
    plan = await make_plan(build_answer(PLACE, dp_rank=1), engine)
    assert plan.engine_kwargs()["scheduling_params"] is None
    assert plan.params is not None
    assert (plan.params.applied_directive, plan.params.reason) == (FORWARD, "tensorrt-llm-not-importable")


@pytest.mark.parametrize(("rank", "expected"), [(2, (2, False)), (None, None)])
async def test_gate_off_changes_nothing_but_forwards_the_routers_rank(
    rank: int | None, expected: tuple[int, bool] | None
) -> None:
    """As Dynamo's own worker: even an id that the worker put there itself stays."""
    given = disagg(DISAGGREGATED_PARAMS, conversation_id="the worker's own")
    client = FakeClient(config=ClientConfig(affinity=Affinity.OFF))
    engine = build_profile(DISAGGREGATED_PARAMS)
    plan = await make_plan(None, engine, request=build_request(rank=rank), client=client)
    kwargs = plan.engine_kwargs(disaggregated_params=given)
    assert kwargs["disaggregated_params"] is given
    assert given.conversation_id == "the worker's own"
    assert kwargs["scheduling_params"] == (expected and schedule(DISAGGREGATED_PARAMS, *expected))
    assert (client.questions, client.finishes) == ([], [])
