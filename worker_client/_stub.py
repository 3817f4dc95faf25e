"""The RPCs with types, and gRPC's errors as reason tokens: the only importer of generated services."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import grpc

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc

CHANNEL_OPTIONS = (
    # The sidecar is on this machine: no proxy of the environment belongs between.
    ("grpc.enable_http_proxy", 0),
    # A channel of its own, so that another client's failures don't delay ours.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name the least time that an attempt to connect gets; a busy worker needs some.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
)


NO_METHOD = "grpc-unimplemented"
_BROKEN_WRITE = "Internal error from Core"


class Enrich(Protocol):
    """The unary RPC."""

    def __call__(
        self, request: service_pb2.EnrichRequest, *, timeout: float
    ) -> Awaitable[service_pb2.EnrichResponse]:
        """Asks one question; `timeout` is in seconds. Raises `grpc.aio.AioRpcError`."""


class EnrichCall(Protocol):
    """One open EnrichStream."""

    async def write(self, request: service_pb2.EnrichStreamRequest) -> None:
        """Sends one message; waits while the peer does not read."""

    async def done_writing(self) -> None:
        """Says that nothing more will be written."""

    async def read(self) -> Any:
        """Returns the next `EnrichStreamResponse`, or `grpc.aio.EOF`."""

    async def code(self) -> grpc.StatusCode:
        """Returns the status that the call ended with."""

    async def details(self) -> str:
        """Returns the text of that status."""

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
    """Returns what the sidecar would decide about `request`, without side effects.

    Raises:
        grpc.aio.AioRpcError: the call failed; `describe_status` names why.
    """
    stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
    response: service_pb2.ExplainResponse = await stub.Explain(
        service_pb2.ExplainRequest(request=request), timeout=timeout_s
    )
    return response


async def get_policy(channel: grpc.aio.Channel, timeout_s: float) -> admin_pb2.GetPolicyResponse:
    """Returns the sidecar's policy in force.

    Raises:
        grpc.aio.AioRpcError: the call failed; `describe_status` names why.
    """
    stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
    response: admin_pb2.GetPolicyResponse = await stub.GetPolicy(
        admin_pb2.GetPolicyRequest(), timeout=timeout_s
    )
    return response


def find_unary(channel: grpc.aio.Channel) -> Enrich:
    """Returns the unary RPC on `channel`."""
    stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
    enrich: Enrich = stub.Enrich
    return enrich


async def describe_end(call: EnrichCall) -> str:
    """Returns a reason token for the end of `call`, once it has ended."""
    return describe_status(await call.code(), await call.details())


def describe_status(code: grpc.StatusCode, details: str | None) -> str:
    """Returns a reason token for a status.

    gRPC reports a failed connect as UNAVAILABLE and names the system's error in the text only; a write that
    meets a broken connection before its end is read, it reports as an internal error of its own.
    """
    details = details or ""
    if code is grpc.StatusCode.INTERNAL and details == _BROKEN_WRITE:
        return "connection-lost"
    if code is grpc.StatusCode.UNAVAILABLE:
        for text, token in (
            ("Permission denied", "permission-denied"),
            ("No such file", "socket-missing"),
            ("refused", "connection-refused"),
            ("draining", "sidecar-draining"),
            ("http1", "not-grpc"),
            ("timed out", "connection-timed-out"),
        ):
            if text in details:
                return token
        return "connection-lost"
    if code is grpc.StatusCode.OK:
        return "stream-ended"
    return f"grpc-{code.name.lower().replace('_', '-')}"
