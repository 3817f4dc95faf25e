"""The sidecar alone: streams of prepared requests, bytes out and bytes in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count as count_from
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc

from bench.hot_path.drive import Call
from bench.hot_path.exchange import encode_exchanges
from bench.workload import ENGINE, Workload
from routing_hints.v1 import service_pb2, types_pb2
from worker_client import _codec

_METHOD = "/routing_hints.v1.RoutingHintsService/EnrichStream"


class NotDecidedError(Exception):
    """The sidecar refused a request, so its time says nothing about deciding."""


@asynccontextmanager
async def open_streams(
    path: Path, workload: Workload, prepared: int, *, batch: int, count: int, has_finishes: bool = False
) -> AsyncIterator[Call]:
    """Sends messages of `batch` requests, one at a time on each of `count` streams.

    The client's side parses no response, so this is to a stream what the bare echo is to a unary call. The
    first `prepared` requests of the workload are sent again and again, with `has_finishes` beside the finish
    reports of the message before; responses are checked before and after that.
    """
    exchanges = encode_exchanges(islice(workload.requests(), prepared))
    requests = [exchange.request for exchange in exchanges]
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method: Any = channel.stream_stream(_METHOD)
        idle = []
        for first in range(count):
            batches = [requests[at : at + batch] for at in range(first * batch, prepared, count * batch)]
            stream = _Stream(method(), _encode_turns(batches, has_finishes))
            await stream.open()
            idle.append(stream)

        async def call() -> float:
            stream = idle.pop()
            await stream.call()
            idle.append(stream)
            return time.perf_counter()

        yield call
        for stream in idle:
            stream.close()


class _Stream:
    """One stream and the messages that it sends in turns."""

    def __init__(self, rpc: Any, messages: list[bytes]) -> None:
        self._rpc = rpc
        self._messages = messages
        self._turns = cycle(messages)
        self._reply = b""

    async def open(self) -> None:
        """Says hello, and sends every message once; raises NotDecidedError where a request is refused."""
        hello = service_pb2.EnrichStreamRequest(
            hello=service_pb2.StreamHello(worker_id="bench"), engines=[_codec.encode_engine(ENGINE)]
        )
        await self._rpc.write(hello.SerializeToString())
        await self._rpc.read()
        for _ in self._messages:
            await self.call()
            self._check()

    async def call(self) -> None:
        """Sends one message and reads its response."""
        await self._rpc.write(next(self._turns))
        self._reply = await self._rpc.read()

    def close(self) -> None:
        """Ends the stream; raises NotDecidedError where the last response holds a refusal."""
        self._rpc.cancel()
        self._check()

    def _check(self) -> None:
        results = service_pb2.EnrichStreamResponse.FromString(self._reply).results
        withheld = types_pb2.RANK_DIRECTIVE_WITHHOLD
        if not results or any(result.response.rank_directive != withheld for result in results):
            raise NotDecidedError(str(results[:1]))


def _encode_turns(batches: Sequence[Sequence[service_pb2.EnrichRequest]], has_finishes: bool) -> list[bytes]:
    """Returns the messages of a stream, in their order."""
    numbers = count_from(1)
    turns = [
        [service_pb2.EnrichItem(seq=next(numbers), request=request) for request in batch] for batch in batches
    ]
    finishes = [list(_finish_all(items)) if has_finishes else [] for items in turns]
    return [
        service_pb2.EnrichStreamRequest(items=items, finishes=before).SerializeToString()
        for items, before in zip(turns, [finishes[-1], *finishes], strict=False)
    ]


def _finish_all(items: Sequence[service_pb2.EnrichItem]) -> Iterator[service_pb2.Finish]:
    for item in items:
        yield service_pb2.Finish(
            request_id=item.request.request_id,
            phase=item.request.phase,
            outcome=service_pb2.FINISH_OUTCOME_COMPLETED,
            applied_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
            id_attached=True,
            observed_dp_rank=0,
            seq=item.seq,
        )
