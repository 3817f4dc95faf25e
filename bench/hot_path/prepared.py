"""The sidecar alone: streams of prepared questions, bytes out and bytes in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count as count_from
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc

from bench.hot_path.drive import Ask
from bench.hot_path.exchange import encode_exchanges
from bench.workload import Workload
from routing_hints.v1 import service_pb2, types_pb2

_METHOD = "/routing_hints.v1.RoutingHintsService/EnrichStream"


class NotDecidedError(Exception):
    """The sidecar refused a question, so its time says nothing about deciding."""


@asynccontextmanager
async def open_streams(
    path: Path, workload: Workload, prepared: int, *, batch: int, count: int, has_ends: bool = False
) -> AsyncIterator[Ask]:
    """Asks messages of `batch` questions, one at a time on each of `count` streams.

    The client's side reads no answer, so this is what the bare echo is for a unary call. The first `prepared`
    legs of the workload are asked about again and again, on request with the ends of the message before;
    before and after that, answers are checked.
    """
    exchanges = encode_exchanges(islice(workload.legs(), prepared))
    questions = [exchange.question for exchange in exchanges]
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method: Any = channel.stream_stream(_METHOD)
        idle = []
        for first in range(count):
            batches = [questions[at : at + batch] for at in range(first * batch, prepared, count * batch)]
            stream = _Stream(method(), _encode_turns(batches, has_ends))
            await stream.open()
            idle.append(stream)

        async def ask() -> float:
            stream = idle.pop()
            await stream.ask()
            idle.append(stream)
            return time.perf_counter()

        yield ask
        for stream in idle:
            stream.close()


class _Stream:
    """One stream and the messages that it sends in turns."""

    def __init__(self, call: Any, messages: list[bytes]) -> None:
        self._call = call
        self._messages = messages
        self._turns = cycle(messages)
        self._reply = b""

    async def open(self) -> None:
        """Says hello, and sends every message once; raises NotDecidedError where a question is refused."""
        hello = service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="bench"))
        await self._call.write(hello.SerializeToString())
        await self._call.read()
        for _ in self._messages:
            await self.ask()
            self._check()

    async def ask(self) -> None:
        """Sends one message and reads its answer."""
        await self._call.write(next(self._turns))
        self._reply = await self._call.read()

    def close(self) -> None:
        """Ends the stream; raises NotDecidedError where the last answer holds a refusal."""
        self._call.cancel()
        self._check()

    def _check(self) -> None:
        results = service_pb2.EnrichStreamResponse.FromString(self._reply).results
        withheld = types_pb2.RANK_DIRECTIVE_WITHHOLD
        if not results or any(result.response.rank_directive != withheld for result in results):
            raise NotDecidedError(str(results[:1]))


def _encode_turns(batches: Sequence[Sequence[service_pb2.EnrichRequest]], has_ends: bool) -> list[bytes]:
    """Returns the messages of a stream, in their order."""
    numbers = count_from(1)
    turns = [
        [service_pb2.EnrichItem(seq=next(numbers), request=question) for question in batch]
        for batch in batches
    ]
    ends = [list(_end_all(items)) if has_ends else [] for items in turns]
    return [
        service_pb2.EnrichStreamRequest(items=items, finishes=before).SerializeToString()
        for items, before in zip(turns, [ends[-1], *ends], strict=False)
    ]


def _end_all(items: Sequence[service_pb2.EnrichItem]) -> Iterator[service_pb2.Finish]:
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
