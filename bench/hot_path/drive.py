"""A closed loop of so many in flight, and what it measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

Ask = Callable[[], Awaitable[float]]
"""Asks once and returns the time (of `perf_counter`) at which the answer was there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one asker.

    Attributes:
        p50_us, p99_us: latency in microseconds.
        per_s: answers per second.
        client_cpu_s, server_cpu_s: processor seconds per 100,000 answers.
    """

    p50_us: float
    p99_us: float
    per_s: float
    client_cpu_s: float
    server_cpu_s: float


async def drive(
    ask: Ask,
    in_flight: int,
    duration_s: float,
    server_cpu_s: Callable[[], float],
    *,
    answers_per_ask: int = 1,
) -> Sample:
    """Asks again and again in `in_flight` tasks for `duration_s` seconds."""
    latencies: list[float] = []
    deadline = time.perf_counter() + duration_s

    async def repeat() -> None:
        while True:
            began = time.perf_counter()
            answered = await ask()
            latencies.append(answered - began)
            if answered > deadline:
                return

    server_before, client_before, began = server_cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(in_flight)))
    elapsed_s = time.perf_counter() - began
    answers = len(latencies) * answers_per_ask
    scale = 100_000 / answers
    p50, p99 = np.percentile(np.array(latencies) * 1e6, [50, 99])
    return Sample(
        p50_us=float(p50),
        p99_us=float(p99),
        per_s=answers / elapsed_s,
        client_cpu_s=(time.process_time() - client_before) * scale,
        server_cpu_s=(server_cpu_s() - server_before) * scale,
    )
