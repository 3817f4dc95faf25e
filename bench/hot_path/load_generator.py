"""The askers that are compared to the sidecar alone: the client, a bare unary echo, and raw sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc

from bench.hot_path import echo_server
from bench.hot_path.drive import Ask
from bench.hot_path.exchange import encode_exchanges
from bench.workload import ENGINE, Workload
from worker_client import ClientConfig, Origin, RoutingHintClient

PATIENT_S = 30.0
PREPARED = 4_096


class NotAskedError(Exception):
    """The client answered without the sidecar, so its time says nothing about asking."""


@asynccontextmanager
async def open_client(path: Path) -> AsyncIterator[RoutingHintClient]:
    """A client whose every answer is the sidecar's: no deadline hurries it."""
    config = ClientConfig(
        target=f"unix://{path}", known_timeout_s=PATIENT_S, unknown_timeout_s=PATIENT_S, worker_id="bench"
    )
    async with RoutingHintClient(config) as client:
        yield client


def make_plan_asker(client: RoutingHintClient, workload: Workload) -> Ask:
    """Plans one request and ends it, as a worker does around its engine call; timed until the plan is there.

    The requests exist beforehand, as the peers' payloads do.
    """
    legs = cycle(list(islice(workload.legs(), PREPARED)))

    async def ask() -> float:
        leg = next(legs)
        async with client.plan(
            leg.request, leg.context, phase=leg.phase, engine=ENGINE, headers=leg.headers
        ) as plan:
            planned_at = time.perf_counter()
            if plan.answer.origin is not Origin.SIDECAR:
                raise NotAskedError(plan.reason)
        return planned_at

    return ask


@asynccontextmanager
async def open_echo(path: Path) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """The echo's method, bytes in and bytes out, on the channel that a user would write."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method: Any = channel.unary_unary(echo_server.METHOD)
        yield method


def make_echo_asker(method: Callable[[bytes], Awaitable[bytes]], workload: Workload) -> Ask:
    """Echoes as many bytes as the workload's questions and answers have."""
    exchanges = encode_exchanges(islice(workload.legs(), PREPARED))
    payloads = cycle(
        [
            exchange.answer_bytes.to_bytes(4, "big") + bytes(exchange.question_bytes - 4)
            for exchange in exchanges
        ]
    )

    async def ask() -> float:
        await method(next(payloads))
        return time.perf_counter()

    return ask


class RawPool:
    """Connections to the raw server; each carries one question at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, payload: bytes, answer_bytes: int) -> None:
        """Sends a question and reads its answer."""
        connection = self._idle.pop() if self._idle else await asyncio.open_unix_connection(str(self._path))
        reader, writer = connection
        writer.write(payload)
        await reader.readexactly(answer_bytes)
        self._idle.append(connection)

    async def close(self) -> None:
        """Closes every connection."""
        for _, writer in self._idle:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def open_raw(path: Path, workload: Workload) -> AsyncIterator[Ask]:
    """Moves as many bytes as the workload's questions and answers have."""
    payloads = cycle(
        [
            (
                exchange.question_bytes.to_bytes(4, "big")
                + exchange.answer_bytes.to_bytes(4, "big")
                + bytes(exchange.question_bytes - 8),
                exchange.answer_bytes,
            )
            for exchange in encode_exchanges(islice(workload.legs(), PREPARED))
        ]
    )
    pool = RawPool(path)

    async def ask() -> float:
        await pool.call(*next(payloads))
        return time.perf_counter()

    try:
        yield ask
    finally:
        await pool.close()
