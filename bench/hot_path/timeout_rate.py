"""How often a decision misses its 25 ms while the event loop is busy with a worker's other work."""

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
CALL_EVERY_S = 0.01
CONVERSATIONS = 50


@dataclass(frozen=True, slots=True)
class TimeoutRates:
    """Shares of calls that timed out.

    Attributes:
        plans: plans of remembered conversations that fell back on memory.
        echoes: unary echoes that `asyncio.wait_for` cancelled after the same time.
        calls: how many of each there were.
    """

    plans: float
    echoes: float
    calls: int


async def measure_timeout_rates(
    sidecar: Path, echo: Callable[[bytes], Awaitable[bytes]], duration_s: float
) -> TimeoutRates:
    """Calls both, 100 times a second each, in a loop that also streams tokens and sometimes stalls."""
    workload = Workload(CONVERSATIONS, 5)
    requests = cycle(list(islice(workload.requests(), 2 * CONVERSATIONS)))
    exchange = encode_exchanges(islice(workload.requests(), 1))[0]
    payload = exchange.response_bytes.to_bytes(4, "big") + bytes(exchange.request_bytes - 4)
    timed_out = {"plans": 0, "echoes": 0}

    async with RoutingHintClient(ClientConfig(target=f"unix://{sidecar}", known_timeout_s=LIMIT_S)) as client:

        async def plan(*, is_counted: bool = True) -> None:
            engine_request = next(requests)
            async with client.plan(
                engine_request.request, engine_request.context, phase=engine_request.phase, engine=ENGINE
            ) as made:
                timed_out["plans"] += is_counted and made.decision.origin is Origin.MEMORY

        async def call_echo() -> None:
            try:
                await asyncio.wait_for(echo(payload), LIMIT_S)
            except asyncio.TimeoutError:
                timed_out["echoes"] += 1

        for _ in range(2 * CONVERSATIONS):
            await plan(is_counted=False)  # from here on the client remembers every conversation
        work = [asyncio.create_task(_stream_tokens()) for _ in range(STREAMS)]
        work.append(asyncio.create_task(_stall()))
        calls: list[asyncio.Task[None]] = []
        deadline = time.perf_counter() + duration_s
        while time.perf_counter() < deadline:
            calls += [asyncio.create_task(plan()), asyncio.create_task(call_echo())]
            await asyncio.sleep(CALL_EVERY_S)
        await asyncio.gather(*calls)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    count = len(calls) // 2
    return TimeoutRates(timed_out["plans"] / count, timed_out["echoes"] / count, count)


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
