"""What is observed of a request, and whether conversations keep their rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from examples.fake_engine import CompletionOutput, RequestOutput
from routing_hints.v1.service_pb2 import Finish
from tests.support.builders import (
    ENGINE,
    WITHHOLD,
    build_client,
    build_decision,
    build_output,
    build_profile,
    make_plan,
)
from tests.support.strategies import Awkward
from worker_client import EngineProfile, Phase
from worker_client._observation import Observation, RankChange, RankTracker
from worker_client.testing import FakeClient


def observe(*outputs: object) -> tuple[int | None, int | None]:
    """Rank and cached tokens after these outputs."""
    seen = Observation()
    for output in outputs:
        seen.read(output)
    return seen.rank, seen.cached_tokens


def test_rank_and_cached_tokens_of_an_engine_output_are_read() -> None:
    assert observe(build_output(3, 64)) == (3, 64)


def test_a_generation_output_has_no_rank() -> None:
    completion = CompletionOutput(token_ids=[1], finish_reason="stop", disaggregated_params=None)
    output = RequestOutput(request_id=1, outputs=[completion], finished=True, cached_tokens=5)
    assert observe(output) == (None, 5)


def test_a_chunk_in_the_shape_of_dynamos_prefill_handler_is_read() -> None:
    chunk = {
        "disaggregated_params": {"ctx_dp_rank": 2},
        "completion_usage": {"prompt_tokens_details": {"cached_tokens": 32}},
    }
    assert observe(chunk) == (2, 32)


def test_a_later_output_without_a_figure_keeps_the_earlier_one() -> None:
    assert observe(build_output(3, 64), {"token_ids": [1]}, {}) == (3, 64)


@pytest.mark.parametrize("rank", [True, "1", -1, 65_536, None])
def test_a_value_that_can_not_be_a_rank_is_not_observed(rank: object) -> None:
    assert observe(build_output(rank))[0] is None


@pytest.mark.parametrize("output", [None, 3, [], SimpleNamespace(outputs=[]), {"disaggregated_params": None}])
def test_an_output_without_figures_is_no_observation(output: object) -> None:
    """Absent is not zero."""
    assert observe(output) == (None, None)


async def test_an_output_that_can_not_be_read_is_an_internal_error_that_the_request_does_not_feel() -> None:
    client = build_client(None)
    plan = await make_plan(None, build_profile(), client=client)
    plan.observe(Awkward())
    plan.observe(build_output(1))
    assert plan.observed_rank == 1
    assert client.stats()["internal_errors"] == {"RuntimeError": 1}


def build_prefill_result(worker_id: int = 77, **params: Any) -> dict[str, Any]:
    return {
        "prefill_result": {
            "disaggregated_params": {**params, "worker_id": worker_id},
            "prompt_tokens_details": {"cached_tokens": 48},
        }
    }


async def report(client: FakeClient, request: dict[str, Any], engine: EngineProfile = ENGINE) -> Finish:
    """The finish report of a decode worker's request whose own engine ran it on rank 3."""
    async with client.plan(request, phase=Phase.DECODE, engine=engine) as plan:
        plan.engine_kwargs()
        plan.observe(build_output(3, 5))
    return client.finishes[-1]


@pytest.mark.parametrize("handed_over", [{"ctx_dp_rank": 1}, {}])
async def test_decode_takes_what_the_prefill_worker_reported(handed_over: dict[str, Any]) -> None:
    """A generation engine's own figures say nothing about where the prompt was computed."""
    finish = await report(build_client(None), build_prefill_result(**handed_over))
    assert finish.HasField("observed_dp_rank") is bool(handed_over)
    assert (finish.observed_dp_rank, finish.cached_tokens) == (handed_over.get("ctx_dp_rank", 0), 48)


async def test_a_decode_worker_without_a_prefill_result_is_observed_itself() -> None:
    finish = await report(build_client(None), {})
    assert (finish.observed_dp_rank, finish.cached_tokens) == (3, 5)


async def test_the_same_rank_at_another_prefill_worker_is_a_move() -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    for worker_id in (77, 77, 78):
        await report(client, build_prefill_result(worker_id, ctx_dp_rank=1))
    returns = client.stats()["conversation_returns"]
    assert returns == {f"withhold/none/{change}": 1 for change in ("first", "same", "moved")}


async def test_the_same_rank_of_another_engine_start_is_a_move() -> None:
    client = build_client(build_decision(WITHHOLD, "c"))
    for instance_id in ("before", "before", "after"):
        await report(client, {}, build_profile(instance_id=instance_id))
    returns = client.stats()["conversation_returns"]
    assert returns == {f"withhold/none/{change}": 1 for change in ("first", "same", "moved")}


def track(
    tracker: RankTracker, rank: int | None, name: str = "c", *, instance: str = "e", passed: bool = True
) -> RankChange:
    """The rank change of one prefill turn of conversation `name`."""
    observed = Observation(rank, None, instance)
    return tracker.track(Phase.PREFILL, name, observed, is_directed=passed)


def test_a_turns_rank_is_compared_with_the_turn_before() -> None:
    tracker = RankTracker(8)
    assert [track(tracker, rank) for rank in (1, 1, 2, 2, 1)] == [
        RankChange.FIRST,
        RankChange.SAME,
        RankChange.MOVED,
        RankChange.SAME,
        RankChange.MOVED,
    ]


def test_the_same_rank_of_another_engine_is_a_move() -> None:
    """Its cache is another one."""
    tracker = RankTracker(8)
    assert [track(tracker, 1, instance=name) for name in ("a", "b")] == [RankChange.FIRST, RankChange.MOVED]


def test_phases_are_followed_apart() -> None:
    """Prefill and decode ranks have nothing to do with each other."""
    tracker = RankTracker(8)
    track(tracker, 1)
    assert tracker.track(Phase.DECODE, "c", Observation(2), is_directed=True) is RankChange.FIRST


def test_without_a_rank_or_a_conversation_the_change_is_unknown_and_nothing_is_remembered() -> None:
    tracker = RankTracker(8)
    assert [track(tracker, None), track(tracker, 1, ""), track(tracker, 1)] == [
        RankChange.UNKNOWN,
        RankChange.UNKNOWN,
        RankChange.FIRST,
    ]


def test_the_conversation_seen_longest_ago_is_forgotten_first() -> None:
    tracker = RankTracker(1)
    assert [track(tracker, 1, name) for name in ("a", "b", "a")] == [RankChange.FIRST] * 3


def test_a_few_moves_are_normal() -> None:
    """An engine lets a full rank overflow: three moves of eight returns say nothing."""
    tracker = RankTracker(8)
    for rank in (0, 0, 0, 0, 0, 0, 1, 2, 3):
        track(tracker, rank)
    assert tracker.is_moving(Phase.PREFILL) is False


def test_a_phase_is_moving_from_eight_returns_on_of_which_half_moved() -> None:
    tracker = RankTracker(8)
    for rank in (0, 1, 0, 1, 0, 1, 0, 1):
        track(tracker, rank)
    assert tracker.is_moving(Phase.PREFILL) is False
    track(tracker, 0)
    assert tracker.is_moving(Phase.PREFILL) is True
    assert tracker.is_moving(Phase.DECODE) is False


def test_moves_of_conversations_that_the_engine_was_not_passed_do_not_count() -> None:
    """Outside the rollout, and until it is switched on, conversations may go anywhere."""
    tracker = RankTracker(8)
    for turn in range(20):
        assert track(tracker, turn % 4, "outside", passed=False) is not RankChange.UNKNOWN
    track(tracker, 1, "outside", passed=True)
    assert tracker.is_moving(Phase.PREFILL) is False


def test_moves_to_another_engine_start_do_not_count() -> None:
    """A prefill worker that was restarted, or a router that is not sticky, breaks no promise."""
    tracker = RankTracker(64)
    for start in ("before", "after"):
        for number in range(20):
            observed = Observation(number % 4, instance=start)
            tracker.track(Phase.DECODE, f"c{number}", observed, is_directed=True)
    assert tracker.is_moving(Phase.DECODE) is False
