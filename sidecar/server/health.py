"""Serves grpc.health.v1 by a map of named components: the sidecar is serving while all are healthy.

grpcio-health-checking's servicer is not used because its Watch does not end when the sidecar drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from sidecar.server.drain import DrainGate, DrainingError
from sidecar.server.error_boundary import Context, ErrorBoundary, NotFoundError, parse

SERVICE_NAME = "grpc.health.v1.Health"

_Response = health_pb2.HealthCheckResponse


class Health:
    """The components by name.

    Args:
        components: names of all components; at first none is healthy.
    """

    def __init__(self, components: Iterable[str]) -> None:
        self._healthy = dict.fromkeys(components, False)
        self._changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """Whether every component is healthy."""
        return all(self._healthy.values())

    @property
    def components(self) -> Mapping[str, bool]:
        """Whether each component is healthy, by name."""
        return self._healthy

    def set(self, component: str, is_healthy: bool) -> None:
        """Sets whether a component is healthy."""
        self._healthy[component] = is_healthy
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """An event that the next `set` sets."""
        return self._changed


class HealthServicer:
    """Serves Check and Watch; all services of the sidecar share its health.

    Args:
        health: the health to serve.
        services: service names to serve, besides the empty one.
        gate: ends each Watch when the sidecar drains, after the last change was written.
    """

    def __init__(self, health: Health, services: Iterable[str], gate: DrainGate) -> None:
        self._health = health
        self._services = frozenset({"", *services})
        self._gate = gate

    def check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        """Returns the current status; raises NotFoundError for an unknown service."""
        if request.service not in self._services:
            raise NotFoundError("no such service")
        return _Response(status=self._status(request.service))

    async def watch(self, data: bytes, context: Context) -> None:
        """Writes the status now and whenever it changes."""
        service = parse(health_pb2.HealthCheckRequest, data).service
        last = None
        try:
            while True:
                # Taken before the write, during which the status may change.
                change = self._health.next_change
                last = await self._write_change(service, last, context)
                await self._gate.wait(change.wait)
        except DrainingError:
            await self._write_change(service, last, context)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the sidecar is draining")

    def make_handler(self, error_boundary: ErrorBoundary) -> grpc.GenericRpcHandler:
        """Returns the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Check": error_boundary.serve_unary(health_pb2.HealthCheckRequest, self.check),
                "Watch": error_boundary.serve_server_stream(self.watch),
            },
        )

    async def _write_change(self, service: str, last: Any, context: Context) -> Any:
        status = self._status(service)
        if status != last:
            await context.write(_Response(status=status).SerializeToString())
        return status

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._health.is_serving else _Response.NOT_SERVING
