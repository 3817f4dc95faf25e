"""What the client says in the worker's log: exact fields, once, and no raw id."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from examples.fake_engine import RANK_ONLY
from tests.support.builders import build_answer, build_profile, build_request, make_plan
from tests.unit.worker_client.test_observation import build_output
from worker_client import (
    AdpRouter,
    Affinity,
    Answer,
    ClientConfig,
    EngineProfile,
    Phase,
    RankDirective,
    RankSource,
)
from worker_client._model import ClientPolicy
from worker_client.testing import FakeClient

FORWARD, WITHHOLD, PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
ACTIVE = {
    "event": "conversation_affinity_active",
    "log_level": "info",
    "phase": "prefill",
    "dialect": "conversation_params",
    "source": "agent_context.session_id",
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


def client_of(answer: Answer, **config: Any) -> FakeClient:
    """A client whose sidecar always says that."""
    return FakeClient(lambda facts, engine: answer, config=ClientConfig(**config))


def named(lines: list[Any], event: str) -> list[Any]:
    """The lines of one event."""
    return [line for line in lines if line["event"] == event]


async def test_invariants_are_stated_once_per_phase() -> None:
    """The first request of a leg that goes out with the id and without a forced rank."""
    client = client_of(build_answer(WITHHOLD, "raw-conversation-id"))
    assert await run(client, build_profile(), None, None) == [ACTIVE]
    assert await run(client, build_profile(), phase=Phase.AGGREGATED) == [{**ACTIVE, "phase": "aggregated"}]


async def test_rank_of_the_router_counts_as_forced_where_the_operator_wants_it() -> None:
    """With rank source ROUTER the engine records the router's first rank."""
    client = client_of(build_answer(FORWARD, "c"), rank_source=RankSource.ROUTER)
    assert await run(client, build_profile()) == [{**ACTIVE, "attention_dp_rank_forced": True}]


async def test_rank_of_the_sidecar_is_placed_not_forced() -> None:
    """With rank source SIDECAR the line says who placed."""
    client = client_of(build_answer(PLACE, "c", dp_rank=1), rank_source=RankSource.SIDECAR)
    assert await run(client, build_profile(records_first_rank=True)) == [{**ACTIVE, "rank_placed": True}]


async def test_forced_rank_is_not_called_active() -> None:
    """The engine would honour the rank first and ignore the conversation."""
    client = client_of(build_answer(FORWARD, "c"))
    assert await run(client, build_profile()) == []
    assert await run(client, build_profile(), router_rank=None) == [ACTIVE]


async def test_plain_id_is_logged_only_if_the_policy_says_so() -> None:
    """By default a conversation is named by its hash alone."""
    client = client_of(build_answer(WITHHOLD, "raw-conversation-id"))
    client._transport.policy = ClientPolicy(revision="r1", log_plain_ids=True)
    assert await run(client, build_profile()) == [{**ACTIVE, "conversation_id": "raw-conversation-id"}]


async def test_second_turn_on_the_rank_of_the_first_is_confirmed_once() -> None:
    """Attached is not the same as honoured; this line is how one knows."""
    client = client_of(build_answer(WITHHOLD, "raw-conversation-id"))
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


async def test_same_rank_without_the_id_attached_confirms_nothing() -> None:
    """That the router keeps a rank is not the engine's doing."""
    client = client_of(build_answer(FORWARD, None))
    assert named(await run(client, build_profile(), 3, 3, 3), "conversation_affinity_confirmed") == []


async def test_conversations_that_keep_moving_are_a_warning_once() -> None:
    """A flag without effect is seen by its effect."""
    client = client_of(build_answer(WITHHOLD, "raw-conversation-id"))
    lines = await run(client, build_profile(), *(turn % 4 for turn in range(30)))
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["event"], line["phase"]) for line in warnings] == [
        ("conversation_affinity_not_honoured", "prefill")
    ]


async def test_moves_outside_the_rollout_are_no_warning() -> None:
    """Nine conversations in ten that the engine is not told say nothing about the tenth."""
    answers = [
        build_answer(FORWARD, conversation_hash=f"{n:016x}", notices=("outside-rollout",)) for n in range(9)
    ]
    answers.append(build_answer(WITHHOLD, "c"))
    client = FakeClient(lambda facts, engine: answers[int(facts.request_id)])
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
async def test_id_that_is_wanted_and_not_attached_is_a_warning_once(
    engine: EngineProfile, notices: tuple[str, ...], reason: str, word: str
) -> None:
    """With the reason token and what to change."""
    client = client_of(build_answer(FORWARD, None, notices=notices), affinity=Affinity.ON)
    lines = named(await run(client, engine, None, None), "conversation_affinity_inactive")
    assert [{**line, "change": ""} for line in lines] == [
        {
            "event": "conversation_affinity_inactive",
            "log_level": "warning",
            "phase": "prefill",
            "reason": reason,
            "source": "agent_context.session_id",
            "change": "",
            "conversation_hash": "0123456789abcdef",
        }
    ]
    assert word in lines[0]["change"]


@pytest.mark.parametrize(
    ("answer", "engine", "config"),
    [
        (build_answer(FORWARD, notices=("outside-rollout",)), build_profile(), {}),
        (
            build_answer(FORWARD, notices=("placement-phase-off",)),
            build_profile(adp_router=AdpRouter.DEFAULT),
            {"rank_source": RankSource.SIDECAR},
        ),
        (build_answer(FORWARD), build_profile(adp_router=AdpRouter.DEFAULT), {}),
        (build_answer(FORWARD, conversation_hash=""), build_profile(), {}),
        (
            build_answer(PLACE, dp_rank=1),
            build_profile(adp_router=AdpRouter.DEFAULT),
            {"rank_source": RankSource.SIDECAR},
        ),
    ],
    ids=["outside-rollout", "leg-not-placed-on", "nobody-wants-it", "no-identity", "placed-instead"],
)
async def test_id_that_nobody_misses_is_no_warning(
    answer: Answer, engine: EngineProfile, config: dict[str, Any]
) -> None:
    """The operator's will, an engine without affinity, no identity, or a rank placed in its stead."""
    assert named(await run(client_of(answer, **config), engine), "conversation_affinity_inactive") == []


async def test_no_line_holds_a_raw_id() -> None:
    """Whatever is said, the session id is not in it."""
    client = client_of(build_answer(WITHHOLD, "raw-conversation-id"), affinity=Affinity.ON)
    engines = [build_profile(), build_profile(RANK_ONLY, instance_id="engine-2")]
    lines = [line for engine in engines for line in await run(client, engine, *range(4), *range(4), 0, 1, 1)]
    assert len(lines) > 3
    assert "raw-conversation-id" not in repr(lines)


async def test_log_that_raises_hurts_no_request() -> None:
    """A worker's own log may fail, and then the id is attached all the same."""

    def fail(*_: object) -> Any:
        raise ValueError("I/O operation on closed file")

    before = structlog.get_config()
    structlog.configure(processors=[fail])
    try:
        client = client_of(build_answer(WITHHOLD, "c"), affinity=Affinity.ON)
        for engine in (build_profile(), build_profile(RANK_ONLY, instance_id="engine-2")):
            plan = await client.plan(build_request(rank=9), phase=Phase.PREFILL, engine=engine)
            kwargs = plan.engine_kwargs()
            plan.finish()
            assert ("conversation_params" in kwargs) is (engine.instance_id == "engine-1")
    finally:
        structlog.configure(**before)
    assert "defects" not in client.stats()


async def test_profile_made_anew_for_each_request_is_warned_of_once() -> None:
    """Nothing would be known again, and nobody would see why; a worker that has had a few engines is fine."""
    client = client_of(build_answer(WITHHOLD, "c-1"))
    events: list[str] = []
    for number in range(130):
        lines = await run(client, build_profile(instance_id=f"engine-{number}"))
        events += [line["event"] for line in lines if line["event"] == "engine_profiles_pile_up"]
        if number == 20:
            assert events == []
    assert events == ["engine_profiles_pile_up"]
