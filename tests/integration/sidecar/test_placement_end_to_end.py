"""Conversations on engines without any router that pins: client, real sidecar process, fake engine."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from examples.fake_engine import CONVERSATION_PARAMS, RANK_ONLY, EngineCall, FakeLLM, install
from tests.support.sidecar import SidecarProcess, make_client
from tests.support.wait import wait_until
from worker_client import (
    AdpRouter,
    Affinity,
    EngineProfile,
    Origin,
    Phase,
    PlacementState,
    Plan,
    RankDirective,
    RankSource,
    RoutingHintClient,
)

_CONVERSATIONS = 9
_TURNS = 4


class ConversationsHarness:
    """Conversations whose turns run together on one engine.

    Attributes:
        calls: the engine's calls, by conversation.
        plans: the plans, by conversation.
    """

    def __init__(self, llm: FakeLLM, phase: Phase, **profile: Any) -> None:
        self.llm = llm
        self.calls: list[list[EngineCall]] = [[] for _ in range(_CONVERSATIONS)]
        self.plans: list[list[Plan]] = [[] for _ in range(_CONVERSATIONS)]
        self._phase = phase
        self._profile = EngineProfile.detect(llm, **profile)
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
        turn = len(self.calls[number])
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
        self.calls[number].append(call)
        self.plans[number].append(plan)

    @property
    def ranks(self) -> list[list[int | None]]:
        """The ranks that the turns ran on, by conversation."""
        return [[call.rank for call in calls] for calls in self.calls]

    def count_moves(self) -> list[int]:
        """By conversation, the turns that ran on another rank than the turn before."""
        return [sum(a != b for a, b in pairwise(ranks)) for ranks in self.ranks]


_make_client = partial(make_client, rank_source=RankSource.SIDECAR)


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.AGGREGATED])
async def test_every_turn_returns_to_its_rank_and_finds_its_prefix(
    phase: Phase, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """On an engine that pins nothing; all ranks are used."""
    with install(RANK_ONLY):
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), phase)
        async with _make_client(start_sidecar_process().target) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {ranks[0] for ranks in fleet.ranks} == {0, 1, 2, 3}
    for plans, calls, ranks in zip(fleet.plans, fleet.calls, fleet.ranks, strict=True):
        assert min(call.cached_tokens or 0 for call in calls[1:]) > 0
        states = [plan.decision.placement for plan in plans]
        assert states == [PlacementState.NEW] + [PlacementState.RETAINED] * 3
        sent = [call.kwargs["scheduling_params"] for call in calls]
        assert [(params.attention_dp_rank, params.attention_dp_relax) for params in sent] == [
            (rank, True) for rank in ranks
        ]


async def test_the_worker_logs_once_that_ranks_are_placed_and_once_that_they_are_kept(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    with install(RANK_ONLY), structlog.testing.capture_logs() as lines:
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), Phase.PREFILL)
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


async def test_without_placement_the_same_turns_move() -> None:
    """The control."""
    with install(RANK_ONLY):
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), Phase.AGGREGATED)
        async with _make_client("unix:/nowhere", affinity=Affinity.OFF) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert sum(fleet.count_moves()) > _CONVERSATIONS


async def test_an_engine_that_records_the_first_rank_gets_it_once_and_keeps_it(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation", records_first_rank=True)
        fleet = ConversationsHarness(llm, Phase.PREFILL, records_first_rank=True)
        async with _make_client(start_sidecar_process().target) as client:
            for _ in range(_TURNS):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    for plans, ranks in zip(fleet.plans, fleet.ranks, strict=True):
        assert plans[0].decision.dp_rank == ranks[0]
        assert [plan.applied_directive for plan in plans] == [RankDirective.PLACE] + [
            RankDirective.WITHHOLD
        ] * 3


async def _await_sidecar(client: RoutingHintClient) -> None:
    """Returns once the sidecar decides again; by requests to an engine that is not the test's."""
    profile = EngineProfile(adp_router=AdpRouter.DEFAULT, dp_size=2)

    async def is_back() -> bool:
        plan = await client.plan({"token_ids": [1]}, phase=Phase.PREFILL, engine=profile)
        plan.finish()
        return plan.decision.origin is Origin.SIDECAR

    await wait_until(is_back, "a decision of the restarted sidecar")


@pytest.mark.parametrize("dead_turns", [0, 1])
@pytest.mark.parametrize("kill_after", [1, 2, 3])
async def test_a_kill_moves_nothing_that_the_worker_remembers(
    kill_after: int, dead_turns: int, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Over the kill, over turns without a sidecar, and over its return."""
    with install(RANK_ONLY):
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process()
        async with _make_client(process.target) as client:
            for _ in range(kill_after):
                await fleet.run_turn(client)
            process.signal(signal.SIGKILL)
            process.wait()
            for _ in range(dead_turns):
                await fleet.run_turn(client)
            start_sidecar_process()
            await _await_sidecar(client)
            for _ in range(2):
                await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {plans[-1].decision.placement for plans in fleet.plans} == {PlacementState.RETAINED}


@pytest.mark.parametrize("kill_after", [1, 2])
async def test_a_kill_moves_a_conversation_that_nobody_remembers_at_most_once(
    kill_after: int, start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """The control: without the worker's memory its rank is lost, and kept again from then on."""
    with install(RANK_ONLY):
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process()
        async with _make_client(process.target, memory_entries=0) as client:
            for _ in range(kill_after):
                await fleet.run_turn(client)
            process.signal(signal.SIGKILL)
            process.wait()
            start_sidecar_process()
            await _await_sidecar(client)
            for _ in range(3):
                await fleet.run_turn(client)
    assert max(fleet.count_moves()) <= 1
    assert sum(fleet.count_moves()) > 0


@pytest.mark.parametrize(
    ("reuse", "origin"), [("max_age_s: 0", Origin.MEMORY), ("max_age_s: 1800", Origin.REUSED)]
)
async def test_a_kill_in_the_middle_of_a_turn_moves_nothing_that_the_worker_remembers(
    reuse: str, origin: Origin, start_sidecar_process: Callable[..., SidecarProcess], tmp_path: Path
) -> None:
    """Requests that wait when the sidecar dies, or that reuse a decision, run on the same ranks."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"operational: {{reuse: {{{reuse}}}}}")
    with install(RANK_ONLY):
        fleet = ConversationsHarness(FakeLLM(RANK_ONLY, 4), Phase.PREFILL)
        process = start_sidecar_process("--policy", str(policy))
        async with _make_client(process.target) as client:
            await fleet.run_turn(client)
            process.signal(signal.SIGSTOP)
            turn = asyncio.ensure_future(fleet.run_turn(client))
            await asyncio.sleep(0)
            process.signal(signal.SIGKILL)
            process.wait()
            await turn
            start_sidecar_process()
            await _await_sidecar(client)
            await fleet.run_turn(client)
    assert fleet.count_moves() == [0] * _CONVERSATIONS
    assert {plans[1].decision.origin for plans in fleet.plans} == {origin}
