"""The edge to gRPC: bytes come in, bytes or a status go out, and no exception passes.

Messages are parsed here and not by grpc, which would log a traceback for every malformed one.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

from sidecar.telemetry.counters import Counters
from sidecar.wire.field_limit import FieldError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MessageT = TypeVar("MessageT", bound=Message)


DEFECT_MESSAGE = "a defect of the sidecar; its log names the place"
_NAMED_FRAMES = 8


class NotFoundError(Exception):
    """What was asked for is not known."""


class MalformedMessageError(ValueError):
    """The bytes are not a message of the contract."""


class DefectLog:
    """Counts what should not happen and says each kind once, without the values that were involved."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        counters.declare("defects")
        self._said: set[str] = set()
        self._log = structlog.get_logger("sidecar")

    def report(self, error: Exception) -> None:
        """Takes an exception that no rule accounts for."""
        self._counters.add("defects")
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-_NAMED_FRAMES:]))
        kind = f"{type(error).__name__} in {place}"
        if kind not in self._said:
            self._said.add(kind)
            self._log.error("defect", kind=kind)


def parse(message_class: type[MessageT], data: bytes) -> MessageT:
    """Returns the message that the bytes hold.

    Raises:
        MalformedMessageError: they hold none, or a string in it is not UTF-8.
    """
    try:
        return message_class.FromString(data)
    except (DecodeError, ValueError):
        raise MalformedMessageError("the message is malformed or holds invalid UTF-8") from None


@contextmanager
def _ignore_lost_peer(counters: Counters) -> Iterator[None]:
    # Writing to a peer that left is no defect; a cancelled call is what grpc takes it for.
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        counters.add("lost_calls")
        raise asyncio.CancelledError from None


class Edge:
    """Makes plain functions and coroutines into handlers that end every call with a status."""

    def __init__(self, counters: Counters, defects: DefectLog) -> None:
        self._counters = counters
        self._defects = defects

    def serve_unary(
        self, message_class: type[MessageT], handle: Callable[[MessageT], Message]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Makes a plain function the handler of a unary RPC."""

        async def call(data: bytes, context: Context) -> bytes:
            with _ignore_lost_peer(self._counters):
                try:
                    return handle(parse(message_class, data)).SerializeToString()
                except Exception as error:  # noqa: BLE001, one call's failure must stay its own
                    await self._abort(context, error)

        return grpc.unary_unary_rpc_method_handler(call)

    def serve_stream(self, converse: Callable[[Context], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
        """Makes a coroutine that reads and writes bytes the handler of a bidirectional stream."""

        async def call(_requests: object, context: Context) -> None:
            await self._shield(converse(context), context)

        return grpc.stream_stream_rpc_method_handler(call)

    def serve_server_stream(
        self, send: Callable[[bytes, Context], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Makes a coroutine that takes bytes and writes bytes the handler of a server stream."""

        async def call(data: bytes, context: Context) -> None:
            await self._shield(send(data, context), context)

        return grpc.unary_stream_rpc_method_handler(call)

    async def _shield(self, call: Awaitable[None], context: Context) -> None:
        with _ignore_lost_peer(self._counters):
            try:
                await call
            except grpc.aio.BaseError:
                raise
            except Exception as error:  # noqa: BLE001, one call's failure must stay its own
                await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, (FieldError, MalformedMessageError)):
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        elif isinstance(error, NotFoundError):
            code, text = grpc.StatusCode.NOT_FOUND, str(error)
        else:
            self._defects.report(error)
            code, text = grpc.StatusCode.INTERNAL, DEFECT_MESSAGE
        self._counters.add("failed_calls", ("code", code.name.lower()))
        # abort() raises, and grpc wants its exception to pass.
        await context.abort(code, text)
        raise AssertionError("abort() returned")
