"""The load generators beside the sidecar alone: the client, a bare unary echo, and raw sockets."""

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
from bench.hot_path.drive import Call
from bench.hot_path.exchange import encode_exchanges
from bench.workload import ENGINE, Workload
from worker_client import ClientConfig, Origin, RoutingHintClient

PATIENT_S = 30.0
PREPARED = 4_096


class SidecarBypassedError(Exception):
    """The client decided without the sidecar, so its time says nothing about the call."""


@asynccontextmanager
async def open_client(path: Path) -> AsyncIterator[RoutingHintClient]:
    """A client whose every decision is the sidecar's: no deadline ends a call."""
    config = ClientConfig(
        target=f"unix://{path}", known_timeout_s=PATIENT_S, unknown_timeout_s=PATIENT_S, worker_id="bench"
    )
    async with RoutingHintClient(config) as client:
        yield client


def make_plan_call(client: RoutingHintClient, workload: Workload) -> Call:
    """Plans one request and ends it, as a worker does around its engine call; timed until the plan is there.

    The requests exist beforehand, as the peers' payloads do.
    """
    requests = cycle(list(islice(workload.requests(), PREPARED)))

    async def call() -> float:
        engine_request = next(requests)
        async with client.plan(
            engine_request.request,
            engine_request.context,
            phase=engine_request.phase,
            engine=ENGINE,
            headers=engine_request.headers,
        ) as plan:
            planned_at = time.perf_counter()
            if plan.decision.origin is not Origin.SIDECAR:
                raise SidecarBypassedError(plan.reason)
        return planned_at

    return call


@asynccontextmanager
async def open_echo(path: Path) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """The echo's method, bytes in and bytes out, on the channel that a user would write."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method: Any = channel.unary_unary(echo_server.METHOD)
        yield method


def make_echo_call(method: Callable[[bytes], Awaitable[bytes]], workload: Workload) -> Call:
    """Echoes as many bytes as the workload's requests and responses have."""
    exchanges = encode_exchanges(islice(workload.requests(), PREPARED))
    payloads = cycle(
        [
            exchange.response_bytes.to_bytes(4, "big") + bytes(exchange.request_bytes - 4)
            for exchange in exchanges
        ]
    )

    async def call() -> float:
        await method(next(payloads))
        return time.perf_counter()

    return call


class RawPool:
    """Connections to the raw server; each carries one request at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, payload: bytes, response_bytes: int) -> None:
        """Sends a request and reads its response."""
        connection = self._idle.pop() if self._idle else await asyncio.open_unix_connection(str(self._path))
        reader, writer = connection
        writer.write(payload)
        await reader.readexactly(response_bytes)
        self._idle.append(connection)

    async def close(self) -> None:
        """Closes every connection."""
        for _, writer in self._idle:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def open_raw(path: Path, workload: Workload) -> AsyncIterator[Call]:
    """Moves as many bytes as the workload's requests and responses have."""
    payloads = cycle(
        [
            (
                exchange.request_bytes.to_bytes(4, "big")
                + exchange.response_bytes.to_bytes(4, "big")
                + bytes(exchange.request_bytes - 8),
                exchange.response_bytes,
            )
            for exchange in encode_exchanges(islice(workload.requests(), PREPARED))
        ]
    )
    pool = RawPool(path)

    async def call() -> float:
        await pool.call(*next(payloads))
        return time.perf_counter()

    try:
        yield call
    finally:
        await pool.close()
