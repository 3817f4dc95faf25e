"""What a worker may pass that is not well-formed: the request goes on, and the reason is logged once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    FakeLLM,
    Release,
    install,
)
from tests.support.builders import build_request
from worker_client import EngineProfile, EngineSource, Phase
from worker_client.testing import FakeClient

RANK = 2


async def serve(
    client: FakeClient, llm: FakeLLM, profile: EngineSource, request: object, context: object = None
) -> Any:
    """Runs a request as a worker would; returns the engine's call."""
    params = llm.release.disaggregated_params(request_type="context_only")
    async with client.plan(request, context, phase=Phase.PREFILL, engine=profile) as plan:
        kwargs = plan.engine_kwargs(disaggregated_params=params)
        async for output in llm.generate_async([1] * 20, **kwargs):
            plan.observe(output)
    return llm.calls[-1]


@pytest.mark.parametrize(
    "routing", [None, "none", {"dp_rank": "2"}, {"dp_rank": -1}, {"dp_rank": 4}, {"dp_rank": True}]
)
async def test_a_value_that_can_not_be_a_rank_never_reaches_the_engine(routing: object) -> None:
    with install(RANK_ONLY):
        llm = FakeLLM(RANK_ONLY, 4)
        call = await serve(FakeClient(), llm, EngineProfile.detect(llm), build_request(routing=routing))
    assert call.kwargs["scheduling_params"] is None
    assert call.finished


async def test_dropped_ranks_are_logged_once_and_counted_each() -> None:
    with install(RANK_ONLY), capture_logs() as lines:
        client, llm = FakeClient(), FakeLLM(RANK_ONLY, 4)
        profile = EngineProfile.detect(llm)
        for rank in (4, -1):
            await serve(client, llm, profile, build_request(routing={"dp_rank": rank}))
    assert [line["event"] for line in lines].count("attention_dp_rank_dropped") == 1
    assert client.stats()["router_rank_dropped"] == {"": 2}


@pytest.mark.parametrize("request_", [None, 7, "text", [], {"token_ids": None, "agent_context": "me"}])
async def test_a_request_of_unknown_shape_goes_on_without_an_id(request_: object) -> None:
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
        call = await serve(FakeClient(), llm, EngineProfile.detect(llm), request_)
    assert call.conversation_id is None
    assert call.finished


async def test_an_engine_without_arguments_keeps_the_routers_rank() -> None:
    """Where the engine's router can't be read, no id is attached."""
    with install(CONVERSATION_PARAMS), capture_logs() as lines:
        llm = FakeLLM(CONVERSATION_PARAMS, 4)
        profile = EngineProfile.lazy(lambda: SimpleNamespace(generate_async=llm.generate_async))
        call = await serve(FakeClient(), llm, profile, build_request(rank=RANK))
    assert call.conversation_id is None
    assert call.kwargs["scheduling_params"].attention_dp_rank == RANK
    assert lines == []


async def test_conversation_params_that_raise_keep_the_routers_rank_and_are_one_warning() -> None:
    """The engine's own validation refuses the id; the router's rank goes out as if there were none."""

    class RefusingParams:
        def __init__(self, conversation_id: str) -> None:
            raise ValueError(conversation_id)

    with install(CONVERSATION_PARAMS), capture_logs() as lines:
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tensorrt_llm.llmapi.ConversationParams", RefusingParams)
            profile = EngineProfile.detect(llm)
        client = FakeClient()
        for _ in range(2):
            call = await serve(client, llm, profile, build_request(rank=RANK))
    assert call.conversation_id is None
    assert call.kwargs["scheduling_params"].attention_dp_rank == RANK
    (line,) = [line for line in lines if line["event"] == "conversation_affinity_inactive"]
    assert line["reason"] == "engine-refused-id"


async def test_engines_of_different_dialects_share_a_client() -> None:
    client, engines = FakeClient(), []
    for release, router in (
        (CONVERSATION_PARAMS, "conversation"),
        (DISAGGREGATED_PARAMS, "conversation"),
        (RANK_ONLY, "default"),
    ):
        with install(release):
            llm = FakeLLM(release, 4, router=router)
            engines.append((llm, EngineProfile.detect(llm)))
    attached: dict[str, set[str | None]] = {}
    for llm, profile in engines * 2:
        call = await serve(client, llm, profile, build_request(rank=RANK))
        attached.setdefault(llm.release.name, set()).add(call.conversation_id)
    assert attached == {
        "conversation_params": {"conversation-0001"},
        "disaggregated_params": {"conversation-0001"},
        "rank_only": {None},
    }
    assert [_rank_of(llm) for llm, _ in engines] == [None, None, RANK]


def _rank_of(llm: FakeLLM) -> int | None:
    schedule = llm.calls[-1].kwargs["scheduling_params"]
    return None if schedule is None else schedule.attention_dp_rank


@pytest.mark.parametrize(
    "release", [RANK_ONLY, DISAGGREGATED_PARAMS, CONVERSATION_PARAMS], ids=lambda release: release.name
)
async def test_a_context_that_raises_is_as_good_as_none(release: Release) -> None:
    class Raising:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    with install(release):
        llm = FakeLLM(release, 4)
        call = await serve(FakeClient(), llm, EngineProfile.detect(llm), build_request(rank=RANK), Raising())
    assert call.finished
