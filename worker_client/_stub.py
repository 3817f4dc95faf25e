"""Typed RPCs, and gRPC statuses as reason tokens; the only module that imports the generated services."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from routing_hints import tokens
from routing_hints.limits import MAX_MESSAGE_BYTES
from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc

CHANNEL_OPTIONS = (
    # The sidecar is local: a proxy set in the environment must not be used.
    ("grpc.enable_http_proxy", 0),
    # A connection of its own, so that another client's failures do not delay ours.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is the minimum timeout of a connect; a busy worker needs some time.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


_BROKEN_WRITE = "Internal error from Core"


class EnrichCall(Protocol):
    """One open EnrichStream."""

    async def write(self, request: service_pb2.EnrichStreamRequest) -> None:
        """Sends one message; waits while the peer is not reading."""

    async def done_writing(self) -> None:
        """Half-closes the stream: no more messages will be written."""

    async def read(self) -> Any:
        """Returns the next `EnrichStreamResponse`, or `grpc.aio.EOF`."""

    async def code(self) -> grpc.StatusCode:
        """Returns the status that the call ended with."""

    async def details(self) -> str:
        """Returns the details of that status."""

    def cancel(self) -> bool:
        """Ends the call."""


def open_stream(channel: grpc.aio.Channel) -> EnrichCall:
    """Opens an EnrichStream on `channel`."""
    stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
    call: EnrichCall = stub.EnrichStream()
    return call


async def explain(
    channel: grpc.aio.Channel, request: service_pb2.EnrichRequest, timeout_s: float
) -> service_pb2.ExplainResponse:
    """Returns the sidecar's decision about `request`, without side effects.

    Raises:
        grpc.aio.AioRpcError: the call failed; `describe_status` returns why.
    """
    stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
    response: service_pb2.ExplainResponse = await stub.Explain(
        service_pb2.ExplainRequest(request=request), timeout=timeout_s
    )
    return response


async def get_policy(channel: grpc.aio.Channel, timeout_s: float) -> admin_pb2.GetPolicyResponse:
    """Returns the sidecar's policy in force.

    Raises:
        grpc.aio.AioRpcError: the call failed; `describe_status` returns why.
    """
    stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
    response: admin_pb2.GetPolicyResponse = await stub.GetPolicy(
        admin_pb2.GetPolicyRequest(), timeout=timeout_s
    )
    return response


async def describe_end(call: EnrichCall) -> str:
    """Waits for the end of `call` and returns the reason as a token."""
    return describe_status(await call.code(), await call.details())


def describe_status(code: grpc.StatusCode, details: str | None) -> str:
    """Returns a reason token for a status.

    gRPC reports a failed connect as UNAVAILABLE, with the system's error only in the text, and a write to a
    broken connection whose end was not read yet as an internal error of its own.
    """
    details = details or ""
    if code is grpc.StatusCode.INTERNAL and details == _BROKEN_WRITE:
        return tokens.CONNECTION_LOST
    if code is grpc.StatusCode.UNAVAILABLE:
        for text, token in (
            ("Permission denied", tokens.PERMISSION_DENIED),
            ("No such file", tokens.SOCKET_MISSING),
            ("refused", tokens.CONNECTION_REFUSED),
            ("draining", tokens.SIDECAR_DRAINING),
            ("http1", tokens.NOT_GRPC),
            ("timed out", tokens.CONNECTION_TIMED_OUT),
        ):
            if text in details:
                return token
        return tokens.CONNECTION_LOST
    if code is grpc.StatusCode.OK:
        return tokens.STREAM_ENDED
    return f"{tokens.GRPC_STATUS}{code.name.lower().replace('_', '-')}"
