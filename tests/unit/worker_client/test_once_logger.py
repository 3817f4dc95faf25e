"""What the client writes to the worker's log: exact fields, once, and no raw id."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from examples.fake_engine import RANK_ONLY
from tests.support.builders import (
    FORWARD,
    PLACE,
    WITHHOLD,
    build_client,
    build_decision,
    build_output,
    build_profile,
    build_request,
    make_plan,
)
from worker_client import AdpRouter, Affinity, Decision, EngineProfile, Phase, RankSource
from worker_client._engine_params import EngineParams
from worker_client._once_logger import OnceLogger
from worker_client.testing import FakeClient

ACTIVE = {
    "event": "conversation_affinity_active",
    "log_level": "info",
    "phase": "prefill",
    "dialect": "conversation_params",
    "source": "agent_context.session_id",
    "origin": "sidecar",
    "conversation_id_set": True,
    "attention_dp_rank_forced": False,
    "policy_revision": "r1",
    "conversation_hash": "0123456789abcdef",
}


async def run(
    client: FakeClient,
    engine: EngineProfile,
    *ranks: int | None,
    phase: Phase = Phase.PREFILL,
    router_rank: int | None = 2,
) -> list[Any]:
    """Runs one turn per observed rank; returns what was logged."""
    with capture_logs() as lines:
        for rank in ranks or (None,):
            plan = await client.plan(build_request(rank=router_rank), phase=phase, engine=engine)
            plan.engine_kwargs()
            plan.observe(build_output(rank))
            plan.finish()
    return lines


def select(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_that_affinity_is_active_is_logged_once_per_phase() -> None:
    client = build_client(build_decision(WITHHOLD, "raw-conversation-id"))
    assert await run(client, build_profile(), None, None) == [ACTIVE]
    assert await run(client, build_profile(), phase=Phase.AGGREGATED) == [{**ACTIVE, "phase": "aggregated"}]


async def test_the_rank_of_the_router_is_logged_as_forced_where_the_operator_wants_it() -> None:
    """With rank source ROUTER the engine records the router's first rank."""
    client = build_client(build_decision(FORWARD, "c"), rank_source=RankSource.ROUTER)
    assert await run(client, build_profile()) == [{**ACTIVE, "attention_dp_rank_forced": True}]


async def test_the_rank_of_the_sidecar_is_logged_as_placed_and_not_as_forced() -> None:
    client = build_client(build_decision(PLACE, "c", dp_rank=1), rank_source=RankSource.SIDECAR)
    assert await run(client, build_profile(records_first_rank=True)) == [{**ACTIVE, "rank_placed": True}]


async def test_a_forced_rank_is_not_called_active() -> None:
    """The engine would honor the rank first and ignore the conversation."""
    client = build_client(build_decision(FORWARD, "c"))
    assert await run(client, build_profile()) == []
    assert await run(client, build_profile(), router_rank=None) == [ACTIVE]


@pytest.mark.parametrize("plain_ids", [True, False])
def test_a_plain_id_is_logged_only_where_plain_ids_are_allowed(plain_ids: bool) -> None:
    params = EngineParams({}, WITHHOLD, id_attached=True, rank=None)
    with capture_logs() as lines:
        OnceLogger().log_active(
            Phase.PREFILL,
            build_decision(WITHHOLD, "raw-conversation-id"),
            build_profile(),
            params,
            plain_ids=plain_ids,
        )
    assert lines == [{**ACTIVE, **({"conversation_id": "raw-conversation-id"} if plain_ids else {})}]


async def test_a_second_turn_on_the_rank_of_the_first_is_confirmed_once() -> None:
    """Attached is not the same as honored; this line is how one knows."""
    client = build_client(build_decision(WITHHOLD, "raw-conversation-id"))
    lines = await run(client, build_profile(), 3, 3, 3, 3)
    assert lines == [
        ACTIVE,
        {
            "event": "conversation_affinity_confirmed",
            "log_level": "info",
            "phase": "prefill",
            "observed_dp_rank": 3,
            "conversation_hash": "0123456789abcdef",
        },
    ]


async def test_the_same_rank_without_the_id_attached_confirms_nothing() -> None:
    """That the router keeps a rank is not the engine's doing."""
    client = build_client(build_decision(FORWARD, None))
    assert select(await run(client, build_profile(), 3, 3, 3), "conversation_affinity_confirmed") == []


async def test_conversations_that_keep_moving_are_a_warning_once() -> None:
    client = build_client(build_decision(WITHHOLD, "raw-conversation-id"))
    lines = await run(client, build_profile(), *(turn % 4 for turn in range(30)))
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["event"], line["phase"]) for line in warnings] == [
        ("conversation_affinity_not_honored", "prefill")
    ]


async def test_moves_outside_the_rollout_are_no_warning() -> None:
    """Nine conversations in ten that the engine is not passed show nothing about the tenth."""
    decisions = [
        build_decision(FORWARD, conversation_hash=f"{n:016x}", notices=("outside-rollout",)) for n in range(9)
    ]
    decisions.append(build_decision(WITHHOLD, "c"))
    client = FakeClient(lambda facts, engine: decisions[int(facts.request_id)])
    with capture_logs() as lines:
        for turn in range(20):
            for number in range(10):
                context = type("Context", (), {"id": lambda _, number=number: str(number)})()
                plan = await make_plan(None, build_profile(), context=context, client=client)
                plan.engine_kwargs()
                plan.observe(build_output(3 if number == 9 else turn % 4))
                plan.finish()
    assert [line["event"] for line in lines] == [
        "conversation_affinity_active",
        "conversation_affinity_confirmed",
    ]


@pytest.mark.parametrize(
    ("engine", "notices", "reason", "word"),
    [
        (build_profile(RANK_ONLY), (), "dialect-cannot-carry-id", "TensorRT-LLM"),
        (build_profile(), ("mode-shadow", "would-withhold"), "mode-shadow", "mode: on"),
        (build_profile(adp_router=AdpRouter.DEFAULT), (), "router-pins-nothing", "kv_cache_routing"),
    ],
    ids=["dialect", "shadow", "router"],
)
async def test_an_id_that_is_wanted_and_not_attached_is_a_warning_once(
    engine: EngineProfile, notices: tuple[str, ...], reason: str, word: str
) -> None:
    client = build_client(build_decision(FORWARD, None, notices=notices), affinity=Affinity.ON)
    lines = select(await run(client, engine, None, None), "conversation_affinity_inactive")
    assert [{**line, "hint": ""} for line in lines] == [
        {
            "event": "conversation_affinity_inactive",
            "log_level": "warning",
            "phase": "prefill",
            "reason": reason,
            "source": "agent_context.session_id",
            "hint": "",
            "conversation_hash": "0123456789abcdef",
        }
    ]
    assert word in lines[0]["hint"]


@pytest.mark.parametrize(
    ("decision", "engine", "config"),
    [
        (build_decision(FORWARD, notices=("outside-rollout",)), build_profile(), {}),
        (
            build_decision(FORWARD, notices=("placement-phase-off",)),
            build_profile(adp_router=AdpRouter.DEFAULT),
            {"rank_source": RankSource.SIDECAR},
        ),
        (build_decision(FORWARD), build_profile(adp_router=AdpRouter.DEFAULT), {}),
        (build_decision(FORWARD, conversation_hash=""), build_profile(), {}),
        (
            build_decision(PLACE, dp_rank=1),
            build_profile(adp_router=AdpRouter.DEFAULT),
            {"rank_source": RankSource.SIDECAR},
        ),
    ],
    ids=["outside-rollout", "phase-not-placed-on", "nobody-wants-it", "no-identity", "placed-instead"],
)
async def test_an_id_that_nobody_misses_is_no_warning(
    decision: Decision, engine: EngineProfile, config: dict[str, Any]
) -> None:
    assert select(await run(build_client(decision, **config), engine), "conversation_affinity_inactive") == []


async def test_no_line_holds_a_raw_id() -> None:
    client = build_client(build_decision(WITHHOLD, "raw-conversation-id"), affinity=Affinity.ON)
    engines = [build_profile(), build_profile(RANK_ONLY, instance_id="engine-2")]
    lines = [line for engine in engines for line in await run(client, engine, *range(4), *range(4), 0, 1, 1)]
    assert len(lines) > 3
    assert "raw-conversation-id" not in repr(lines)


async def test_a_log_that_raises_affects_no_request() -> None:
    def fail(*_: object) -> Any:
        raise ValueError("I/O operation on closed file")

    before = structlog.get_config()
    structlog.configure(processors=[fail])
    try:
        client = build_client(build_decision(WITHHOLD, "c"), affinity=Affinity.ON)
        for engine in (build_profile(), build_profile(RANK_ONLY, instance_id="engine-2")):
            plan = await client.plan(build_request(rank=9), phase=Phase.PREFILL, engine=engine)
            kwargs = plan.engine_kwargs()
            plan.finish()
            assert ("conversation_params" in kwargs) is (engine.instance_id == "engine-1")
    finally:
        structlog.configure(**before)
    assert "internal_errors" not in client.stats()


async def test_a_profile_made_anew_for_each_request_is_a_warning_once() -> None:
    """Nothing would be remembered, and nobody would see why; a worker that has had a few engines is fine."""
    client = build_client(build_decision(WITHHOLD, "c-1"))
    events: list[str] = []
    for number in range(130):
        lines = await run(client, build_profile(instance_id=f"engine-{number}"))
        events += [line["event"] for line in lines if line["event"] == "too_many_engine_profiles"]
        if number == 20:
            assert events == []
    assert events == ["too_many_engine_profiles"]
