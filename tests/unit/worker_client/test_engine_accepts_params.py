"""What the client builds gets through the stand-in engine, alone and in mixed batches."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from examples.fake_engine import (
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    RELEASES,
    EngineDeadError,
    Release,
    StandInLLM,
)
from tests.support.builders import build_answer, build_profile, build_request, make_plan
from worker_client import Phase, RankDirective

FORWARD, WITHHOLD, PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
ANSWERS = [
    build_answer(FORWARD),
    build_answer(FORWARD, "c1"),
    build_answer(WITHHOLD, "c2"),
    build_answer(PLACE, dp_rank=3),
    build_answer(PLACE, "c3", dp_rank=0),
]


async def drain(result: Any) -> None:
    """Runs a request to its end."""
    async for _ in result:
        pass


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
async def test_mixed_batch_survives_the_engines_sort(release: Release) -> None:
    """Every answer, with and without a router's rank and a worker's own schedule, in one batch."""
    llm = StandInLLM(release, 4)
    engine = build_profile(release)
    results = []
    for answer in ANSWERS:
        for rank in (None, 1):
            for own in (None, release.scheduling_params()):
                plan = await make_plan(answer, engine, request=build_request(rank=rank))
                params = release.disaggregated_params(request_type="context_only")
                kwargs = plan.engine_kwargs(disaggregated_params=params, scheduling_params=own)
                results.append(llm.generate_async([1, 2, 3], **kwargs))
    random.shuffle(results)
    await asyncio.gather(*map(drain, results))
    assert [call.finished for call in llm.calls] == [True] * 20


async def test_unset_relax_would_have_ended_the_engine() -> None:
    """The control: what the client repairs is what the engine dies of."""
    llm = StandInLLM(RANK_ONLY, 4)
    results = [
        llm.generate_async([1], scheduling_params=RANK_ONLY.scheduling_params(attention_dp_rank=1)),
        llm.generate_async([1], scheduling_params=None),
    ]
    with pytest.raises(EngineDeadError):
        await asyncio.gather(*map(drain, results))


async def test_decode_leg_of_the_disaggregated_dialect_is_accepted() -> None:
    """The copy keeps what the context leg handed over."""
    llm = StandInLLM(DISAGGREGATED_PARAMS, 4, router="conversation")
    handed_over = DISAGGREGATED_PARAMS.disaggregated_params(
        request_type="generation_only", ctx_request_id=1, first_gen_tokens=[7], opaque_state=b"s"
    )
    request = {**build_request(rank=2), "prefill_result": {"disaggregated_params": {"ctx_dp_rank": 1}}}
    plan = await make_plan(
        build_answer(WITHHOLD, "c"), build_profile(DISAGGREGATED_PARAMS), request=request, phase=Phase.DECODE
    )
    await drain(llm.generate_async([1], **plan.engine_kwargs(disaggregated_params=handed_over)))
    assert (llm.calls[0].conversation_id, llm.calls[0].finished) == ("c", True)


async def test_placed_rank_is_where_the_request_runs() -> None:
    """An engine that balances takes the sidecar's rank while it has room."""
    llm = StandInLLM(RANK_ONLY, 4)
    for _ in range(3):
        plan = await make_plan(build_answer(PLACE, dp_rank=2), build_profile(RANK_ONLY))
        await drain(llm.generate_async([1, 2], **plan.engine_kwargs()))
    assert [call.rank for call in llm.calls] == [2, 2, 2]
