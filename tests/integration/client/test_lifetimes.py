"""Requests end in every way that workers know, and the one stream outlives them all."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routing_hints.v1 import service_pb2
from tests.support.builders import ENGINE, build_request
from tests.support.scripted_sidecar import ScriptedSidecar, Stream, build_result, connect
from worker_client import Phase, RoutingHintClient

COMPLETED = service_pb2.FINISH_OUTCOME_COMPLETED
CANCELLED = service_pb2.FINISH_OUTCOME_CANCELLED


async def generate(client: RoutingHintClient, session_id: str = "conversation-0001") -> AsyncIterator[int]:
    """A worker's handler: yields three outputs within the plan's block."""
    async with client.plan(build_request(session_id), phase=Phase.PREFILL, engine=ENGINE) as plan:
        assert plan.conversation_id == f"sidecar:{session_id}"
        plan.engine_kwargs()
        for number in range(3):
            yield number


def list_outcomes(sidecar: ScriptedSidecar) -> list[int]:
    return [finish.outcome for finish in sidecar.finishes]


async def test_each_step_of_a_generator_may_run_in_a_task_of_its_own(tmp_path: Path) -> None:
    """As Dynamo's pull path steps it: the block is entered in one task and left in another."""
    async with connect(tmp_path / "s") as (sidecar, client):
        for _ in range(3):
            generator = generate(client)
            for number in range(3):
                assert await asyncio.create_task(generator.__anext__()) == number
            with pytest.raises(StopAsyncIteration):
                await asyncio.create_task(generator.__anext__())
    assert list_outcomes(sidecar) == [COMPLETED] * 3
    assert len(sidecar.streams) == 1


async def test_a_closed_generator_ends_its_request_as_cancelled(tmp_path: Path) -> None:
    """GeneratorExit at a yield, in another task than the one that entered."""
    async with connect(tmp_path / "s") as (sidecar, client):
        generator = generate(client)
        await asyncio.create_task(generator.__anext__())
        await asyncio.create_task(generator.aclose())
    assert list_outcomes(sidecar) == [CANCELLED]


async def test_a_collected_generator_ends_its_request_as_cancelled(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        generator = generate(client)
        await generator.__anext__()
        del generator
        gc.collect()
        await sidecar.wait_until("a finish report", lambda: list_outcomes(sidecar) == [CANCELLED])
        assert await anext(generate(client)) == 0
    assert len(sidecar.streams) == 1


async def test_a_coroutine_closed_before_its_request_was_sent_leaves_nothing_to_finish(
    tmp_path: Path,
) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        await client.plan(build_request("first"), phase=Phase.PREFILL, engine=ENGINE)
        steps = client.plan(build_request("gone"), phase=Phase.PREFILL, engine=ENGINE).__await__()
        next(steps)
        steps.close()
        await client.plan(build_request("last"), phase=Phase.PREFILL, engine=ENGINE)
    assert (sidecar.session_ids, sidecar.finishes) == (["first", "last"], [])


async def test_a_thousand_callers_cancelled_at_random_finish_exactly_once(tmp_path: Path) -> None:
    """Before, while and after waiting, in the block and at its end; the stream stays the same."""
    seed = random.randrange(2**32)  # noqa: S311  no secret
    print(f"cancellations of seed {seed}")
    chance = random.Random(seed)  # noqa: S311

    async def respond_in_pieces(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            chance.shuffle(items)
            for start in range(0, len(items), 7):
                await stream.write(*map(build_result, items[start : start + 7]))

    async def run_request(client: RoutingHintClient, number: int) -> None:
        async for _ in generate(client, f"conversation-{number:04}"):
            await asyncio.sleep(0)

    async def cancel_sometime(task: asyncio.Task[None]) -> None:
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        task.cancel()

    async with connect(tmp_path / "s", respond_in_pieces) as (sidecar, client):
        await client.plan(build_request("first"), phase=Phase.PREFILL, engine=ENGINE)
        tasks = [asyncio.create_task(run_request(client, number)) for number in range(1_000)]
        await asyncio.gather(*(cancel_sometime(task) for task in tasks))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        gc.collect()
        stats = client.stats()
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert 0 < len(sidecar.finishes) <= 1_000
    finished = Counter(finish.seq for finish in sidecar.finishes)
    assert finished == Counter(item.seq for item in sidecar.items[1:])
    assert len(sidecar.streams) == 1
    assert not {"internal_errors", "stream_lost", "fail_open", "finishes_lost"} & set(stats)
