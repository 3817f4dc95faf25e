"""Conversations on engines without any router that pins: client, real sidecar process, engine stand-in."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing

from examples.fake_engine import CONVERSATION_PARAMS, RANK_ONLY, StandInLLM, install
from tests.support.rows import PATIENT_S
from tests.support.sidecar import SidecarProcess
from worker_client import (
    AdpRouter,
    Affinity,
    ClientConfig,
    Decision,
    EngineProfile,
    Origin,
    Phase,
    RankDirective,
    RankSource,
    RoutingHintClient,
)

_CONVERSATIONS = 9
_TURNS = 4


class Fleet:
    """Conversations whose turns run together on one engine; each conversation's ranks are remembered."""

    def __init__(self, llm: StandInLLM, phase: Phase) -> None:
        self.llm = llm
        self.ranks: list[list[int]] = [[] for _ in range(_CONVERSATIONS)]
        self.cached: list[list[int]] = [[] for _ in range(_CONVERSATIONS)]
        self.plans: list[list[Any]] = [[] for _ in range(_CONVERSATIONS)]
        self._phase = phase
        self._profile = EngineProfile.detect(llm)
        self._prompts = [[number] * 20 for number in range(_CONVERSATIONS)]
        self._random = random.Random(6)  # noqa: S311

    async def run_turn(self, client: RoutingHintClient) -> None:
        """One turn of every conversation, in any order, at the same time."""
        order = list(range(_CONVERSATIONS))
        self._random.shuffle(order)
        await asyncio.gather(*(self._run(client, number) for number in order))

    async def _run(self, client: RoutingHintClient, number: int) -> None:
        prompt = self._prompts[number]
        prompt += [number] * self._random.randrange(10, 100)
        turn = len(self.ranks[number])
        request = {
            "token_ids": list(prompt),
            "routing": {"session_control": {"session_id": f"conversation-{number}"}},
        }
        context = type("Context", (), {"id": staticmethod(lambda: f"r-{number}-{turn}")})
        params = None
        if self._phase is Phase.PREFILL:
            params = self.llm.release.disaggregated_params(request_type="context_only")
        async with client.plan(request, context, phase=self._phase, engine=self._profile) as plan:
            result = self.llm.generate_async(
                request["token_ids"], **plan.engine_kwargs(disaggregated_params=params)
            )
            async for output in result:
                plan.observe(output)
        call = next(call for call in self.llm.calls if call.request_id == result.request_id)
        assert call.rank is not None
        assert call.cached_tokens is not None
        self.ranks[number].append(call.rank)
        self.cached[number].append(call.cached_tokens)
        self.plans[number].append(plan)

    def count_moves(self) -> list[int]:
        """By conversation, the turns that ran on another rank than the turn before."""
        return [sum(a != b for a, b in pairwise(ranks)) for ranks in self.ranks]


def _make_client(target: str, **settings: Any) -> RoutingHintClient:
    config = {
        "target": target.replace("unix:", "unix://"),
        "rank_source": RankSource.SIDECAR,
        "known_timeout_s": PATIENT_S,
        "unknown_timeout_s": PATIENT_S,
        **settings,
    }
    return RoutingHintClient(ClientConfig(**config))


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.AGGREGATED])
async def test_conversations_stay_on_their_ranks(
    phase: Phase, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Every turn after the first returns to its rank and finds its prefix; all ranks are used."""
    with install(RANK_ONLY):
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), phase)
        async with _make_client(start_sidecar_process().target) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {ranks[0] for ranks in fleet.ranks} == {0, 1, 2, 3}
    assert all(min(cached[1:]) > 0 for cached in fleet.cached)
    for plans, ranks in zip(fleet.plans, fleet.ranks, strict=True):
        assert [plan.answer.decision for plan in plans] == [Decision.NEW] + [Decision.RETAINED] * 3
        sent = [plan.params.kwargs["scheduling_params"] for plan in plans]
        assert [(params.attention_dp_rank, params.attention_dp_relax) for params in sent] == [
            (rank, True) for rank in ranks
        ]


async def test_placement_is_said_and_confirmed_once(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """The worker's log says that ranks are placed though no id is set, and that they are kept."""
    with install(RANK_ONLY), structlog.testing.capture_logs() as lines:
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), Phase.PREFILL)
        async with _make_client(start_sidecar_process().target) as client:
            for _ in range(2):
                await fleet.run_turn(client)
    assert [line["event"] for line in lines] == [
        "conversation_affinity_active",
        "conversation_affinity_confirmed",
    ]
    active = lines[0]
    assert (active["rank_placed"], active["conversation_id_set"]) == (True, False)
    assert active["attention_dp_rank_forced"] is False


async def test_without_the_sidecar_they_move() -> None:
    """The same turns on the same engine scatter when nobody places them."""
    with install(RANK_ONLY):
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), Phase.AGGREGATED)
        async with _make_client("unix:/nowhere", affinity=Affinity.OFF) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert sum(fleet.count_moves()) > _CONVERSATIONS


async def test_a_recording_engine_takes_the_first_rank_and_keeps_it(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """With a conversation router that records, only first turns carry a rank, and every turn stays on it."""
    with install(CONVERSATION_PARAMS):
        llm = StandInLLM(CONVERSATION_PARAMS, 4, router="conversation", records_first_rank=True)
        fleet = Fleet(llm, Phase.PREFILL)
        fleet._profile = EngineProfile.detect(llm, records_first_rank=True)
        async with _make_client(start_sidecar_process().target) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    for plans, ranks in zip(fleet.plans, fleet.ranks, strict=True):
        assert plans[0].answer.dp_rank == ranks[0]
        assert [plan.applied_directive for plan in plans] == [RankDirective.PLACE] + [
            RankDirective.WITHHOLD
        ] * 3


async def _await_answer(client: RoutingHintClient) -> None:
    """Returns once the sidecar answers again; asks about an engine that has nothing to do with the test."""
    profile = EngineProfile(adp_router=AdpRouter.DEFAULT, dp_size=2)
    for _ in range(3_000):
        plan = await client.plan({"token_ids": [1]}, phase=Phase.PREFILL, engine=profile)
        plan.finish()
        if plan.answer.origin is Origin.SIDECAR:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the sidecar does not answer")


@pytest.mark.parametrize("dead_turns", [0, 1])
@pytest.mark.parametrize("kill_after", [1, 2, 3])
async def test_a_kill_moves_nothing_that_the_worker_remembers(
    kill_after: int, dead_turns: int, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Conversations keep their ranks over a kill, over turns without a sidecar, and over its return."""
    with install(RANK_ONLY):
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process()
        async with _make_client(process.target) as client:
            for _ in range(kill_after):
                await fleet.run_turn(client)
            process.signal(signal.SIGKILL)
            process.wait()
            for _ in range(dead_turns):
                await fleet.run_turn(client)
            start_sidecar_process()
            await _await_answer(client)
            for _ in range(2):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {plans[-1].answer.decision for plans in fleet.plans} == {Decision.RETAINED}


@pytest.mark.parametrize("kill_after", [1, 2])
async def test_a_kill_moves_what_nobody_remembers_at_most_once(
    kill_after: int, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """A worker without memory loses a conversation's rank once; from then on it is kept again."""
    with install(RANK_ONLY):
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process()
        async with _make_client(process.target, memory_entries=0) as client:
            for _ in range(kill_after):
                await fleet.run_turn(client)
            process.signal(signal.SIGKILL)
            process.wait()
            start_sidecar_process()
            await _await_answer(client)
            for _ in range(3):
                await fleet.run_turn(client)
    assert max(fleet.count_moves()) <= 1
    assert sum(fleet.count_moves()) > 0


async def test_a_kill_in_the_middle_of_a_turn_moves_nothing_that_the_worker_remembers(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """Questions that are under way when the sidecar dies are answered from memory, on the same ranks."""
    with install(RANK_ONLY):
        fleet = Fleet(StandInLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process()
        async with _make_client(process.target) as client:
            await fleet.run_turn(client)
            process.signal(signal.SIGSTOP)
            turn = asyncio.ensure_future(fleet.run_turn(client))
            await asyncio.sleep(0)
            process.signal(signal.SIGKILL)
            process.wait()
            await turn
            start_sidecar_process()
            await _await_answer(client)
            await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {plans[1].answer.origin for plans in fleet.plans} == {Origin.MEMORY}
