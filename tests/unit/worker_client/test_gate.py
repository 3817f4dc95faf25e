"""The gate: the operator's settings applied to the engine's own config."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from examples.fake_engine import CONVERSATION_PARAMS, RANK_ONLY
from tests.support.builders import build_profile, build_request
from worker_client import (
    AdpRouter,
    Affinity,
    ClientConfig,
    ConfigurationError,
    EngineProfile,
    Phase,
    RankDirective,
    RankSource,
    RoutingHintClient,
)
from worker_client._gate import apply_gate
from worker_client.testing import FakeClient


@pytest.mark.parametrize("router", list(AdpRouter))
@pytest.mark.parametrize("source", list(RankSource))
def test_off_is_closed_whatever_the_engines_config_says(router: AdpRouter, source: RankSource) -> None:
    """Off wins over every config and is never a problem."""
    config = ClientConfig(affinity=Affinity.OFF, rank_source=source)
    gated = apply_gate(config, build_profile(adp_router=router))
    assert (gated.closed, gated.problem, gated.profile.adp_router) == ("gate-off", "", router)


@pytest.mark.parametrize("router", list(AdpRouter))
def test_auto_takes_the_engines_own_config(router: AdpRouter) -> None:
    gated = apply_gate(ClientConfig(), build_profile(adp_router=router))
    assert (gated.closed, gated.problem, gated.profile.adp_router) == ("", "", router)


@pytest.mark.parametrize(
    ("router", "seen_as", "is_problem"),
    [
        (AdpRouter.UNKNOWN, AdpRouter.CONVERSATION, False),
        (AdpRouter.UNSPECIFIED, AdpRouter.CONVERSATION, False),
        (AdpRouter.CONVERSATION, AdpRouter.CONVERSATION, False),
        (AdpRouter.DEFAULT, AdpRouter.DEFAULT, True),
        (AdpRouter.KV_CACHE_AWARE, AdpRouter.KV_CACHE_AWARE, True),
    ],
)
def test_on_fills_in_an_unknown_config_and_loses_against_a_no(
    router: AdpRouter, seen_as: AdpRouter, is_problem: bool
) -> None:
    """A shared environment can't enable affinity for an engine whose config has it off."""
    gated = apply_gate(ClientConfig(affinity=Affinity.ON), build_profile(adp_router=router))
    assert gated.profile.adp_router is seen_as
    assert (bool(gated.problem), gated.is_problem_fatal, gated.closed) == (is_problem, False, "")


def test_on_for_a_release_that_takes_no_id_is_a_problem_that_closes_nothing() -> None:
    """Requests of such an engine are still sent to the sidecar and forwarded."""
    gated = apply_gate(
        ClientConfig(affinity=Affinity.ON), build_profile(RANK_ONLY, adp_router=AdpRouter.UNKNOWN)
    )
    assert "takes no conversation id" in gated.problem
    assert (gated.closed, gated.profile.adp_router) == ("", AdpRouter.UNKNOWN)


@pytest.mark.parametrize(
    ("setting", "profiles", "seen"),
    [
        (RankSource.UNSPECIFIED, RankSource.ROUTER, RankSource.ROUTER),
        (RankSource.ENGINE, RankSource.ROUTER, RankSource.ENGINE),
        (RankSource.UNSPECIFIED, RankSource.UNSPECIFIED, RankSource.UNSPECIFIED),
    ],
)
def test_the_rank_source_of_the_settings_wins_over_the_profiles(
    setting: RankSource, profiles: RankSource, seen: RankSource
) -> None:
    """The environment of the process is the operator's last word."""
    gated = apply_gate(ClientConfig(rank_source=setting), build_profile(rank_source=profiles))
    assert gated.profile.rank_source is seen


SETTINGS_THAT_NEVER_ACT = [
    pytest.param({"adp_router": AdpRouter.DEFAULT, "dp_size": 0}, "unknown", id="dp-size-unknown"),
    pytest.param({"adp_router": AdpRouter.DEFAULT, "dp_size": 1}, "single", id="dp-size-1"),
    pytest.param({"adp_router": AdpRouter.CONVERSATION}, "record", id="first-rank-not-recorded"),
]


@pytest.mark.parametrize(("fields", "word"), SETTINGS_THAT_NEVER_ACT)
def test_a_setting_that_can_never_act_is_refused_at_construction_if_the_engine_is_known(
    fields: dict[str, object], word: str
) -> None:
    config = ClientConfig(rank_source=RankSource.SIDECAR)
    with pytest.raises(ConfigurationError, match=word):
        RoutingHintClient(config, engine=build_profile(**fields))


@pytest.mark.parametrize(("fields", "word"), SETTINGS_THAT_NEVER_ACT)
async def test_a_setting_that_can_never_act_is_one_error_and_forward_if_the_engine_comes_later(
    fields: dict[str, object], word: str
) -> None:
    client = FakeClient(config=ClientConfig(rank_source=RankSource.SIDECAR))
    engine = build_profile(**fields)
    with capture_logs() as lines:
        plans = [await client.plan(build_request(), phase=Phase.PREFILL, engine=engine) for _ in range(3)]
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "routing_hints_setting_ignored")
    ]
    assert word in lines[0]["problem"]
    assert {plan.decision.directive for plan in plans} == {RankDirective.FORWARD}
    assert {plan.reason for plan in plans} == {"setting-cannot-act"}
    assert client.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"adp_router": AdpRouter.DEFAULT},
        {"adp_router": AdpRouter.UNKNOWN},
        {"adp_router": AdpRouter.CONVERSATION, "records_first_rank": True},
    ],
)
@pytest.mark.parametrize("affinity", [Affinity.AUTO, Affinity.ON])
def test_placement_that_can_act_is_accepted_whatever_affinity_is(
    fields: dict[str, object], affinity: Affinity
) -> None:
    """Placement by the sidecar needs neither the engine's router nor its dialect."""
    config = ClientConfig(affinity=affinity, rank_source=RankSource.SIDECAR)
    profile = build_profile(**fields)
    RoutingHintClient(config, engine=profile)
    assert apply_gate(config, profile).problem == ""


async def test_on_against_the_config_is_one_warning_and_requests_are_still_submitted() -> None:
    """A decode engine whose config has the router off keeps its ranks."""
    client = FakeClient(config=ClientConfig(affinity=Affinity.ON))
    engine = build_profile(adp_router=AdpRouter.DEFAULT)
    with capture_logs() as lines:
        for _ in range(3):
            plan = await client.plan(build_request(rank=2), phase=Phase.DECODE, engine=engine)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "routing_hints_setting_ignored")
    ]
    assert plan.engine_kwargs()["scheduling_params"] == CONVERSATION_PARAMS.scheduling_params(
        attention_dp_rank=2, attention_dp_relax=False
    )
    assert len(client.requests) == 3


async def test_an_engine_that_does_not_exist_yet_is_no_problem_at_construction() -> None:
    client = FakeClient(config=ClientConfig(rank_source=RankSource.SIDECAR))
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=EngineProfile.lazy(lambda: None))
    assert plan.reason == "engine-not-ready"
