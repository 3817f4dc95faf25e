"""The boundary to gRPC: takes bytes, returns bytes or a status, and lets no exception through.

Messages are parsed here and not by grpc, which would log a traceback for every malformed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from routing_hints.metrics import MetricStore
from sidecar.telemetry import metrics
from sidecar.telemetry.internal_error_log import InternalErrorLog
from sidecar.wire.field_limit import FieldError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MessageT = TypeVar("MessageT", bound=Message)


INTERNAL_ERROR_MESSAGE = "internal error of the sidecar; its log has the source line"


class NotFoundError(Exception):
    """The requested object does not exist."""


class MalformedMessageError(ValueError):
    """The bytes are not a valid message."""


def parse(message_class: type[MessageT], data: bytes) -> MessageT:
    """Returns the message that the bytes hold.

    Raises:
        MalformedMessageError: they hold none, or one with a string that is not UTF-8.
    """
    try:
        return message_class.FromString(data)
    except (DecodeError, ValueError):
        raise MalformedMessageError("the message is malformed or holds invalid UTF-8") from None


@contextmanager
def _ignore_lost_peer(store: MetricStore) -> Iterator[None]:
    # A write to a peer that has left is not an error; to gRPC it is a cancelled call.
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        store.add(metrics.LOST_CALLS)
        raise asyncio.CancelledError from None


class ErrorBoundary:
    """Wraps plain functions and coroutines into handlers that end every call with a status."""

    def __init__(self, store: MetricStore, internal_errors: InternalErrorLog) -> None:
        self._store = store
        self._internal_errors = internal_errors

    def serve_unary(
        self, message_class: type[MessageT], handle: Callable[[MessageT], Message]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Makes a plain function the handler of a unary RPC."""

        async def call(data: bytes, context: Context) -> bytes:
            with _ignore_lost_peer(self._store):
                try:
                    return handle(parse(message_class, data)).SerializeToString()
                except Exception as error:  # noqa: BLE001, a failed call must not affect others
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
        with _ignore_lost_peer(self._store):
            try:
                await call
            except grpc.aio.BaseError:
                raise
            except Exception as error:  # noqa: BLE001, a failed call must not affect others
                await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, (FieldError, MalformedMessageError)):
            code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        elif isinstance(error, NotFoundError):
            code, text = grpc.StatusCode.NOT_FOUND, str(error)
        else:
            self._internal_errors.report(error)
            code, text = grpc.StatusCode.INTERNAL, INTERNAL_ERROR_MESSAGE
        self._store.add(metrics.FAILED_CALLS, code.name.lower())
        # abort() raises, and gRPC needs its exception to propagate.
        await context.abort(code, text)
        raise AssertionError("abort() returned")
