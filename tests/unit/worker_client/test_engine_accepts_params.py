"""The fake engine, as strict as the real one, accepts what the client builds, alone and in mixed batches."""

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
    FakeLLM,
    Release,
)
from tests.support.builders import (
    FORWARD,
    PLACE,
    WITHHOLD,
    build_decision,
    build_profile,
    build_request,
    make_plan,
)
from worker_client import Phase

DECISIONS = [
    build_decision(FORWARD),
    build_decision(FORWARD, "c1"),
    build_decision(WITHHOLD, "c2"),
    build_decision(PLACE, dp_rank=3),
    build_decision(PLACE, "c3", dp_rank=0),
]


async def drain(result: Any) -> None:

    async for _ in result:
        pass


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
async def test_a_batch_of_every_decision_survives_the_engines_sort(release: Release) -> None:
    llm = FakeLLM(release, 4)
    engine = build_profile(release)
    results = []
    for decision in DECISIONS:
        for rank in (None, 1):
            for own in (None, release.scheduling_params()):
                plan = await make_plan(decision, engine, request=build_request(rank=rank))
                params = release.disaggregated_params(request_type="context_only")
                kwargs = plan.engine_kwargs(disaggregated_params=params, scheduling_params=own)
                results.append(llm.generate_async([1, 2, 3], **kwargs))
    seed = random.randrange(2**32)  # noqa: S311  no secret
    print(f"order of seed {seed}")
    random.Random(seed).shuffle(results)  # noqa: S311
    await asyncio.gather(*map(drain, results))
    assert [call.finished for call in llm.calls] == [True] * 20


async def test_an_unset_relax_in_such_a_batch_ends_the_engine() -> None:
    """The control: what the client repairs is what the engine dies of."""
    llm = FakeLLM(RANK_ONLY, 4)
    results = [
        llm.generate_async([1], scheduling_params=RANK_ONLY.scheduling_params(attention_dp_rank=1)),
        llm.generate_async([1], scheduling_params=None),
    ]
    with pytest.raises(EngineDeadError):
        await asyncio.gather(*map(drain, results))


async def test_the_decode_phase_of_the_disaggregated_dialect_is_accepted() -> None:
    """The copy keeps what the context phase handed over."""
    llm = FakeLLM(DISAGGREGATED_PARAMS, 4, router="conversation")
    handed_over = DISAGGREGATED_PARAMS.disaggregated_params(
        request_type="generation_only", ctx_request_id=1, first_gen_tokens=[7], opaque_state=b"s"
    )
    request = {**build_request(rank=2), "prefill_result": {"disaggregated_params": {"ctx_dp_rank": 1}}}
    plan = await make_plan(
        build_decision(WITHHOLD, "c"),
        build_profile(DISAGGREGATED_PARAMS),
        request=request,
        phase=Phase.DECODE,
    )
    await drain(llm.generate_async([1], **plan.engine_kwargs(disaggregated_params=handed_over)))
    assert (llm.calls[0].conversation_id, llm.calls[0].finished) == ("c", True)


async def test_a_placed_rank_is_where_the_request_runs() -> None:
    llm = FakeLLM(RANK_ONLY, 4)
    for _ in range(3):
        plan = await make_plan(build_decision(PLACE, dp_rank=2), build_profile(RANK_ONLY))
        await drain(llm.generate_async([1, 2], **plan.engine_kwargs()))
    assert [call.rank for call in llm.calls] == [2, 2, 2]
