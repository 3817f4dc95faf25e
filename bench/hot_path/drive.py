"""A closed loop with a fixed number of calls in flight, and what it measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

Call = Callable[[], Awaitable[float]]
"""Makes one call and returns the time (of `perf_counter`) at which its response was there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one load generator.

    Attributes:
        p50_us, p99_us: latency in microseconds.
        per_s: responses per second.
        client_cpu_s, server_cpu_s: processor seconds per 100,000 responses.
    """

    p50_us: float
    p99_us: float
    per_s: float
    client_cpu_s: float
    server_cpu_s: float


async def drive(
    call: Call,
    in_flight: int,
    duration_s: float,
    server_cpu_s: Callable[[], float],
    *,
    responses_per_call: int = 1,
) -> Sample:
    """Repeats the call in `in_flight` tasks for `duration_s` seconds."""
    latencies: list[float] = []
    deadline = time.perf_counter() + duration_s

    async def repeat() -> None:
        while True:
            began = time.perf_counter()
            responded = await call()
            latencies.append(responded - began)
            if responded > deadline:
                return

    server_before, client_before, began = server_cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(in_flight)))
    elapsed_s = time.perf_counter() - began
    responses = len(latencies) * responses_per_call
    scale = 100_000 / responses
    p50, p99 = np.percentile(np.array(latencies) * 1e6, [50, 99])
    return Sample(
        p50_us=float(p50),
        p99_us=float(p99),
        per_s=responses / elapsed_s,
        client_cpu_s=(time.process_time() - client_before) * scale,
        server_cpu_s=(server_cpu_s() - server_before) * scale,
    )
