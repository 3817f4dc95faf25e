"""What is observed of a request, and whether conversations stay where they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from examples.fake_engine import CONVERSATION_PARAMS, CompletionOutput, RequestOutput
from tests.support.builders import build_answer, build_profile, make_plan
from tests.support.strategies import Awkward
from worker_client import Phase, RankDirective
from worker_client._observation import Effect, Observation, RankTracker


def build_output(rank: object, cached_tokens: int = 8) -> RequestOutput:
    """An engine output of a context request that ran on `rank`."""
    params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only", ctx_dp_rank=rank)
    completion = CompletionOutput(token_ids=[1], finish_reason="length", disaggregated_params=params)
    return RequestOutput(request_id=1, outputs=[completion], finished=True, cached_tokens=cached_tokens)


def observe(*outputs: object) -> tuple[int | None, int | None]:
    """Rank and cached tokens after these outputs."""
    seen = Observation()
    for output in outputs:
        seen.read(output)
    return seen.rank, seen.cached_tokens


def test_request_output_is_read() -> None:
    """The context engine reports the rank that computed the prompt."""
    assert observe(build_output(3, 64)) == (3, 64)


def test_generation_output_has_no_rank() -> None:
    """Only the context phase fills one in."""
    completion = CompletionOutput(token_ids=[1], finish_reason="stop", disaggregated_params=None)
    output = RequestOutput(request_id=1, outputs=[completion], finished=True, cached_tokens=5)
    assert observe(output) == (None, 5)


def test_chunk_of_a_worker_is_read() -> None:
    """The shape that Dynamo's prefill handler yields."""
    chunk = {
        "disaggregated_params": {"ctx_dp_rank": 2},
        "completion_usage": {"prompt_tokens_details": {"cached_tokens": 32}},
    }
    assert observe(chunk) == (2, 32)


def test_later_output_without_a_figure_keeps_the_earlier_one() -> None:
    """Streams report it once."""
    assert observe(build_output(3, 64), {"token_ids": [1]}, {}) == (3, 64)


@pytest.mark.parametrize("rank", [True, "1", -1, 65_536, None])
def test_what_is_no_rank_is_not_observed(rank: object) -> None:
    """Nor would the contract carry it."""
    assert observe(build_output(rank))[0] is None


@pytest.mark.parametrize("output", [None, 3, [], SimpleNamespace(outputs=[]), {"disaggregated_params": None}])
def test_output_without_figures_is_no_observation(output: object) -> None:
    """Absent is not zero."""
    assert observe(output) == (None, None)


async def test_odd_output_is_a_counted_defect_that_the_request_does_not_feel() -> None:
    """`plan.observe` never raises."""
    plan = await make_plan(None, build_profile())
    plan.observe(Awkward())
    plan.observe(build_output(1))
    assert plan.observation.rank == 1


@pytest.mark.parametrize("handed_over", [{"ctx_dp_rank": 1}, {}])
async def test_decode_takes_the_prefill_workers_word(handed_over: dict[str, Any]) -> None:
    """A generation engine's own figures say nothing about where the prompt was computed."""
    request = {
        "prefill_result": {
            "disaggregated_params": {**handed_over, "worker_id": 77},
            "prompt_tokens_details": {"cached_tokens": 48},
        }
    }
    plan = await make_plan(None, build_profile(), request=request, phase=Phase.DECODE)
    plan.observe(build_output(3, 5))
    assert plan.observation == Observation(handed_over.get("ctx_dp_rank"), 48, "77")


async def test_aggregated_leg_of_a_decode_worker_is_observed() -> None:
    """Without a prefill result this engine's own figures count."""
    plan = await make_plan(build_answer(RankDirective.WITHHOLD, "c"), build_profile(), phase=Phase.DECODE)
    plan.observe(build_output(3, 5))
    assert plan.observation == Observation(3, 5, "engine-1")


def track(
    tracker: RankTracker, rank: int | None, name: str = "c", *, instance: str = "e", told: bool = True
) -> Effect:
    """The effect of one prefill turn of conversation `name`."""
    seen = Observation(rank, None, instance)
    return tracker.track(Phase.PREFILL, name, seen, is_engine_told=told)


def test_effect_compares_with_the_turn_before() -> None:
    """First, same, moved, and moved again when it stays not."""
    tracker = RankTracker(8)
    assert [track(tracker, rank) for rank in (1, 1, 2, 2, 1)] == [
        Effect.FIRST,
        Effect.SAME,
        Effect.MOVED,
        Effect.SAME,
        Effect.MOVED,
    ]


def test_same_rank_of_another_engine_is_a_move() -> None:
    """Its cache is another one."""
    tracker = RankTracker(8)
    assert [track(tracker, 1, instance=name) for name in ("a", "b")] == [Effect.FIRST, Effect.MOVED]


def test_legs_are_followed_apart() -> None:
    """Prefill and decode ranks have nothing to do with each other."""
    tracker = RankTracker(8)
    track(tracker, 1)
    assert tracker.track(Phase.DECODE, "c", Observation(2), is_engine_told=True) is Effect.FIRST


def test_nothing_observed_or_no_conversation_is_unknown() -> None:
    """And is not remembered."""
    tracker = RankTracker(8)
    assert [track(tracker, None), track(tracker, 1, ""), track(tracker, 1)] == [
        Effect.UNKNOWN,
        Effect.UNKNOWN,
        Effect.FIRST,
    ]


def test_conversations_followed_are_bounded() -> None:
    """The one seen longest ago begins anew."""
    tracker = RankTracker(1)
    assert [track(tracker, 1, name) for name in ("a", "b", "a")] == [Effect.FIRST] * 3


def test_few_moves_are_normal() -> None:
    """An engine lets a full rank overflow: three moves of eight returns say nothing."""
    tracker = RankTracker(8)
    for rank in (0, 0, 0, 0, 0, 0, 1, 2, 3):
        track(tracker, rank)
    assert tracker.is_moving(Phase.PREFILL) is False


def test_moving_needs_eight_returns_of_which_half_moved() -> None:
    """Seven moves in a row are too few to tell."""
    tracker = RankTracker(8)
    for rank in (0, 1, 0, 1, 0, 1, 0, 1):
        track(tracker, rank)
    assert tracker.is_moving(Phase.PREFILL) is False
    track(tracker, 0)
    assert tracker.is_moving(Phase.PREFILL) is True
    assert tracker.is_moving(Phase.DECODE) is False


def test_moves_of_conversations_that_the_engine_was_not_told_do_not_count() -> None:
    """Outside the rollout, and until it is switched on, conversations may go anywhere."""
    tracker = RankTracker(8)
    for turn in range(20):
        assert track(tracker, turn % 4, "outside", told=False) is not Effect.UNKNOWN
    track(tracker, 1, "outside", told=True)
    assert tracker.is_moving(Phase.PREFILL) is False


def test_moves_to_another_engine_start_do_not_count() -> None:
    """A prefill worker that was restarted, or a router that is not sticky, breaks no promise."""
    tracker = RankTracker(64)
    for start in ("before", "after"):
        for number in range(20):
            observed = Observation(number % 4, instance=start)
            tracker.track(Phase.DECODE, f"c{number}", observed, is_engine_told=True)
    assert tracker.is_moving(Phase.DECODE) is False
