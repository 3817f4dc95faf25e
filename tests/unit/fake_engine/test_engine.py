"""The fake engine places as the engine's routers place, and dies of what they die of."""

import asyncio
from typing import Any

import pytest

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    SUBAGENT_AFFINITY,
    EngineDeadError,
    FakeLLM,
    RequestOutput,
)
from examples.fake_engine.params import ConversationParams

PROMPT = list(range(64))


def build_conversation(conversation_id: str) -> ConversationParams:
    return ConversationParams(conversation_id=conversation_id)


def build_rank(number: int, relax: bool | None = False) -> Any:
    """An explicit rank, in a class whose relax may be None."""
    return RANK_ONLY.scheduling_params(attention_dp_rank=number, attention_dp_relax=relax)


def build_newer_rank(number: int) -> Any:
    """An explicit rank, in the class of the releases with conversation parameters."""
    return CONVERSATION_PARAMS.scheduling_params(attention_dp_rank=number, attention_dp_relax=False)


async def run(llm: FakeLLM, token_ids: list[int] = PROMPT, **kwargs: Any) -> RequestOutput:
    """Runs one request to its end and returns its last output."""
    outputs = [output async for output in llm.generate_async(token_ids, **kwargs)]
    return outputs[-1]


def list_ranks(llm: FakeLLM) -> list[int | None]:
    return [call.rank for call in llm.calls]


@pytest.mark.parametrize("keyword", ["conversation_params", "session_id"])
async def test_an_unknown_keyword_is_refused(keyword: str) -> None:
    """An older `generate_async` has no `conversation_params`, not even as None."""
    with pytest.raises(TypeError, match=keyword):
        FakeLLM(RANK_ONLY, 4).generate_async(PROMPT, **{keyword: None})


async def test_parameters_of_another_release_are_refused() -> None:
    with pytest.raises(TypeError, match="scheduling_params"):
        FakeLLM(CONVERSATION_PARAMS, 4).generate_async(PROMPT, scheduling_params=build_rank(1))


async def test_a_generation_request_needs_the_context_phases_result() -> None:
    params = RANK_ONLY.disaggregated_params(request_type="generation_only")
    with pytest.raises(TypeError, match="context phase"):
        FakeLLM(RANK_ONLY, 4).generate_async(PROMPT, disaggregated_params=params)


async def test_a_context_request_reports_the_rank_that_ran_it() -> None:
    params = RANK_ONLY.disaggregated_params(request_type="context_only")
    output = await run(FakeLLM(RANK_ONLY, 4), disaggregated_params=params, scheduling_params=build_rank(2))
    assert output.outputs[0].disaggregated_params.ctx_dp_rank == 2


async def test_streaming_yields_cumulative_outputs() -> None:
    outputs = [output async for output in FakeLLM(RANK_ONLY, 4).generate_async(PROMPT, streaming=True)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    assert [output.outputs[0].finish_reason for output in outputs] == [None, None, "stop"]


@pytest.mark.parametrize(("number", "cause"), [(4, IndexError), (-1, KeyError)])
async def test_a_rank_out_of_range_kills_the_engine(number: int, cause: type[Exception]) -> None:
    """The routers check no bounds: one bad rank takes every later request with it."""
    llm = FakeLLM(RANK_ONLY, 4)
    with pytest.raises(EngineDeadError) as death:
        await run(llm, scheduling_params=build_rank(number))
    assert isinstance(death.value.__cause__, cause)
    with pytest.raises(EngineDeadError):
        llm.generate_async(PROMPT)


async def test_an_unset_relax_in_a_mixed_batch_kills_the_engine() -> None:
    """None does not sort among booleans; a request without scheduling parameters counts as True."""
    llm = FakeLLM(RANK_ONLY, 4)
    results = await asyncio.gather(
        run(llm), run(llm, scheduling_params=build_rank(1, relax=None)), return_exceptions=True
    )
    assert [type(result) for result in results] == [EngineDeadError, EngineDeadError]


async def test_a_mixed_batch_with_booleans_lives_and_its_explicit_rank_is_honored() -> None:
    llm = FakeLLM(RANK_ONLY, 4)
    await asyncio.gather(run(llm), run(llm, scheduling_params=build_rank(1)))
    assert llm.calls[1].rank == 1


async def test_the_conversation_router_pins_to_the_first_rank() -> None:
    """First turns go round robin, later ones return."""
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
    for conversation_id in ("a", "b", "a", "c", "b", "a"):
        await run(llm, conversation_params=build_conversation(conversation_id))
    assert list_ranks(llm) == [0, 1, 0, 2, 1, 0]


async def test_a_later_turn_finds_its_prefix_cached() -> None:
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
    outputs = [await run(llm, conversation_params=build_conversation(c)) for c in ("a", "a", "b")]
    assert [output.cached_tokens for output in outputs] == [0, 56, 0]


async def test_an_id_in_disaggregated_params_pins_too() -> None:
    llm = FakeLLM(DISAGGREGATED_PARAMS, 4, router="conversation")
    for conversation_id in ("a", "b", "a"):
        params = DISAGGREGATED_PARAMS.disaggregated_params(
            request_type="context_only", conversation_id=conversation_id
        )
        await run(llm, disaggregated_params=params)
    assert list_ranks(llm) == [0, 1, 0]


async def test_a_router_that_ignores_the_id_does_not_pin() -> None:
    """The negative control: configured to pin, and does not, whatever id is attached."""
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="ignores_id")
    assert llm.args.attention_dp_config.kv_cache_routing_conversation_affinity  # type: ignore[union-attr]
    held = [
        llm.generate_async(PROMPT, conversation_params=build_conversation("a"), streaming=True)
        for _ in range(4)
    ]
    for result in held:
        await result.__anext__()
    assert list_ranks(llm) == [0, 1, 2, 3]


@pytest.mark.parametrize(("records", "expected"), [(False, [3, 0, 0]), (True, [3, 3, 3])])
async def test_an_explicit_first_rank_is_bound_only_if_recorded(records: bool, expected: list[int]) -> None:
    """Before NVIDIA/TensorRT-LLM#16815 an explicit first rank is honored and forgotten."""
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation", records_first_rank=records)
    await run(llm, conversation_params=build_conversation("a"), scheduling_params=build_newer_rank(3))
    await run(llm, conversation_params=build_conversation("a"))
    await run(llm, conversation_params=build_conversation("a"))
    assert list_ranks(llm) == expected


@pytest.mark.parametrize(("records", "expected"), [(False, 2), (True, 0)])
async def test_a_conflicting_rank_moves_a_bound_conversation_unless_recorded(
    records: bool, expected: int
) -> None:
    """Forcing a rank beats the pin before NVIDIA/TensorRT-LLM#16815 and is ignored since."""
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation", records_first_rank=records)
    await run(llm, conversation_params=build_conversation("a"))
    await run(llm, conversation_params=build_conversation("a"), scheduling_params=build_newer_rank(2))
    assert llm.calls[1].rank == expected


async def test_the_conversation_used_longest_ago_is_forgotten() -> None:
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation", max_sessions=2)
    for conversation_id in ("a", "b", "c", "a"):
        await run(llm, conversation_params=build_conversation(conversation_id))
    assert list_ranks(llm) == [0, 1, 2, 3]


async def test_a_full_rank_overflows_without_losing_the_binding() -> None:
    llm = FakeLLM(CONVERSATION_PARAMS, 2, router="conversation", max_active=1)
    held = llm.generate_async(PROMPT, conversation_params=build_conversation("a"), streaming=True)
    await held.__anext__()
    await run(llm, conversation_params=build_conversation("a"))
    held.abort()
    await run(llm, conversation_params=build_conversation("a"))
    assert list_ranks(llm) == [0, 1, 0]


async def test_a_child_starts_on_its_parents_rank_and_is_remembered_as_itself() -> None:
    llm = FakeLLM(SUBAGENT_AFFINITY, 4, router="conversation")
    await run(llm, conversation_params=build_conversation("parent"))
    near_parent = SUBAGENT_AFFINITY.scheduling_params(subagent_affinity_id="parent")
    await run(llm, conversation_params=build_conversation("child"), scheduling_params=near_parent)
    await run(llm, conversation_params=build_conversation("child"))
    await run(llm, conversation_params=build_conversation("other"))
    assert list_ranks(llm) == [0, 0, 0, 1]


async def test_a_strict_rank_waits_for_room_and_a_relaxed_one_goes_elsewhere() -> None:
    llm = FakeLLM(RANK_ONLY, 2, max_active=1)
    held = llm.generate_async(PROMPT, scheduling_params=build_rank(0), streaming=True)
    await held.__anext__()
    strict = llm.generate_async(PROMPT, scheduling_params=build_rank(0))
    relaxed = llm.generate_async(PROMPT, scheduling_params=build_rank(0, relax=True))
    await relaxed.__anext__()
    assert list_ranks(llm) == [0, None, 1]
    held.abort()
    await strict.__anext__()
    assert list_ranks(llm) == [0, 0, 1]


async def test_the_kv_cache_aware_router_follows_the_prefix_unless_a_rank_is_forced() -> None:
    llm = FakeLLM(RANK_ONLY, 4, router="kv_cache_aware")
    await run(llm, scheduling_params=build_rank(2))
    await run(llm)
    await run(llm, scheduling_params=build_rank(1))
    assert list_ranks(llm) == [2, 2, 1]


async def test_an_engine_of_one_rank_ignores_ranks() -> None:
    """Without attention DP there is no router that could trip over a rank."""
    llm = FakeLLM(RANK_ONLY, 1)
    await run(llm, scheduling_params=build_rank(3))
    assert list_ranks(llm) == [0]
    assert not llm.args.enable_attention_dp
