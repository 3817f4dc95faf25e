"""Asking one question per call, for a sidecar that has no stream RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from routing_hints.v1 import service_pb2
from worker_client import _stub
from worker_client._call import Question

_OF_THE_QUESTION = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Statuses that say nothing about other questions."""

Settle = Callable[[Question, "service_pb2.EnrichResponse | None"], None]


async def probe(enrich: _stub.Enrich, timeout_s: float) -> str:
    """Returns why questions can't be asked one by one either, as a reason token; empty if they can.

    An empty question is refused by whoever knows the RPC.
    """
    try:
        await enrich(service_pb2.EnrichRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            return _stub.describe_status(error.code(), error.details())
    return ""


async def ask_singly(
    enrich: _stub.Enrich,
    next_question: Callable[[], Awaitable[Question | None]],
    encode: Callable[[Question], service_pb2.EnrichRequest],
    settle: Settle,
    timeout_s: float,
) -> str:
    """Asks whatever comes until a call fails for a reason that all share; returns it as a reason token.

    Args:
        enrich: the unary RPC.
        next_question: waits for the next question; None once the client is closing.
        encode: makes the question's message.
        settle: takes the response, or None where the question got none.
        timeout_s: of each call, in seconds.
    """
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[str] = loop.create_future()
    calls: set[asyncio.Task[None]] = set()

    async def ask(question: Question) -> None:
        response = None
        try:
            response = await enrich(encode(question), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _OF_THE_QUESTION and not failure.done():
                failure.set_result(_stub.describe_status(error.code(), error.details()))
        settle(question, response)

    async def ask_all() -> None:
        while question := await next_question():
            call = loop.create_task(ask(question))
            calls.add(call)
            call.add_done_callback(calls.discard)
        if not failure.done():
            failure.set_result("client-closed")

    asking = loop.create_task(ask_all())
    try:
        return await failure
    finally:
        running = {asking, *calls}
        for task in running:
            task.cancel()
        await asyncio.wait(running)
