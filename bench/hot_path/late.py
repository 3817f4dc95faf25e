"""How often an answer misses its 25 ms while the worker's event loop is busy with a worker's other work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from bench.hot_path.exchange import encode_exchanges
from bench.workload import ENGINE, Workload
from worker_client import ClientConfig, Origin, RoutingHintClient

LIMIT_S = 0.025
STREAMS = 64
STEP_S = 0.02
PAUSE_S = 0.03
PAUSE_EVERY_S = 0.5
ASK_EVERY_S = 0.01
CONVERSATIONS = 50


@dataclass(frozen=True, slots=True)
class LateRates:
    """Shares of answers that came too late.

    Attributes:
        plans: plans about known conversations that fell back on memory.
        echoes: unary echoes that `asyncio.wait_for` gave up on after the same time.
        asked: how many of each there were.
    """

    plans: float
    echoes: float
    asked: int


async def measure_late_rates(
    sidecar: Path, echo: Callable[[bytes], Awaitable[bytes]], duration_s: float
) -> LateRates:
    """Asks both, 100 times a second each, in a loop that also streams tokens and sometimes stalls."""
    workload = Workload(CONVERSATIONS, 5)
    legs = cycle(list(islice(workload.legs(), 2 * CONVERSATIONS)))
    exchange = encode_exchanges(islice(workload.legs(), 1))[0]
    payload = exchange.answer_bytes.to_bytes(4, "big") + bytes(exchange.question_bytes - 4)
    late = {"plans": 0, "echoes": 0}

    async with RoutingHintClient(ClientConfig(target=f"unix://{sidecar}", known_timeout_s=LIMIT_S)) as client:

        async def plan(*, is_counted: bool = True) -> None:
            leg = next(legs)
            async with client.plan(leg.request, leg.context, phase=leg.phase, engine=ENGINE) as made:
                late["plans"] += is_counted and made.answer.origin is Origin.MEMORY

        async def call_echo() -> None:
            try:
                await asyncio.wait_for(echo(payload), LIMIT_S)
            except asyncio.TimeoutError:
                late["echoes"] += 1

        for _ in range(2 * CONVERSATIONS):
            await plan(is_counted=False)  # from here on every conversation is known
        work = [asyncio.create_task(_stream_tokens()) for _ in range(STREAMS)]
        work.append(asyncio.create_task(_stall()))
        asked: list[asyncio.Task[None]] = []
        deadline = time.perf_counter() + duration_s
        while time.perf_counter() < deadline:
            asked += [asyncio.create_task(plan()), asyncio.create_task(call_echo())]
            await asyncio.sleep(ASK_EVERY_S)
        await asyncio.gather(*asked)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    count = len(asked) // 2
    return LateRates(late["plans"] / count, late["echoes"] / count, count)


async def _stream_tokens() -> None:
    """One request's outputs: every 20 ms a chunk is built and written as JSON, as a worker does."""
    token_ids: list[int] = []
    while True:
        token_ids.append(len(token_ids))
        chunk = {
            "token_ids": token_ids[-1:],
            "text": "token",
            "index": 0,
            "finish_reason": None,
            "log_probs": None,
        }
        json.loads(json.dumps(chunk))
        await asyncio.sleep(STEP_S)


async def _stall() -> None:
    """What holds a worker's loop now and then: a long prompt being copied, a garbage collection."""
    while True:
        await asyncio.sleep(PAUSE_EVERY_S)
        until = time.perf_counter() + PAUSE_S
        while time.perf_counter() < until:
            json.dumps(list(range(1_000)))
