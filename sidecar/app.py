"""The composition root: builds the sidecar, starts it, drains it, stops it."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass

import grpc.aio
import structlog
from grpc_reflection.v1alpha import reflection

from sidecar import admin, health, servicer
from sidecar.counters import Counters
from sidecar.decider import Decider
from sidecar.drain import DrainGate
from sidecar.listener import bind_all
from sidecar.policy_file import PolicyHolder
from sidecar.recorder import Recorder
from sidecar.rpc import DefectLog, Edge
from sidecar.settings import Address
from sidecar.stream import StreamServicer

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Of all gRPC metadata of one call, in bytes: refused from the first on at random, always at the other.
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    # Of one connection; a worker needs one.
    ("grpc.max_concurrent_streams", 1_024),
    # Two sidecars on one port would share its calls silently.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class App:
    """A sidecar in this event loop.

    Attributes:
        addresses: where it listens, chosen ports filled in.
    """

    addresses: tuple[Address, ...]
    _server: grpc.aio.Server
    _health: health.Health
    _gate: DrainGate
    _streams: StreamServicer

    async def stop(self, drain_timeout_s: float, hurry: asyncio.Event | None = None) -> None:
        """Says so in health, lets streams end after the batch at hand, then stops.

        Args:
            drain_timeout_s: seconds to wait for streams and calls; then they are cancelled.
            hurry: ends the wait early when set.
        """
        deadline = time.monotonic() + drain_timeout_s
        self._health.set("sigterm", False)
        self._gate.begin()
        drained = asyncio.ensure_future(self._streams.wait_closed())
        hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
        await asyncio.wait({drained, hurried}, timeout=drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        is_hurried = hurried.done()
        for waiter in (drained, hurried):
            waiter.cancel()
        left_s = max(deadline - time.monotonic(), 0.0)
        await self._server.stop(None if is_hurried else left_s)


async def start_app(addresses: tuple[Address, ...], holder: PolicyHolder) -> App:
    """Builds and starts a sidecar.

    Args:
        addresses: where to listen.
        holder: gives the policy in force.

    Raises:
        ConfigurationError: an address can't be bound.
    """
    counters = Counters()
    defects = DefectLog(counters)
    edge = Edge(counters, defects)
    recorder = Recorder(time.time)
    gate = DrainGate()
    well = health.Health(("listener", "sigterm"))
    decider = Decider(holder, recorder, counters)
    streams = StreamServicer(decider, holder, recorder, counters, defects, gate)
    names = (servicer.SERVICE_NAME, admin.SERVICE_NAME)

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        (
            servicer.RoutingHintsServicer(decider, streams, holder).make_handler(edge),
            admin.AdminServicer(holder, recorder, counters, time.time()).make_handler(edge),
            health.HealthServicer(well, names, gate).make_handler(edge),
        )
    )
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    bound = bind_all(server, addresses)
    await server.start()
    well.set("listener", True)
    well.set("sigterm", True)
    return App(tuple(bound), server, well, gate, streams)


async def run(addresses: tuple[Address, ...], holder: PolicyHolder, drain_timeout_s: float) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends the drain at once.

    Raises:
        ConfigurationError: an address can't be bound.
    """
    log = structlog.get_logger("sidecar")
    stop, hurry = asyncio.Event(), asyncio.Event()

    def take_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take_signal)
    app = await start_app(addresses, holder)
    policy = holder.current
    log.info(
        "sidecar_started",
        listen=[str(address) for address in app.addresses],
        policy=policy.origin,
        policy_revision=policy.compiled.revision,
        identity_epoch=policy.compiled.identity_epoch,
    )
    await stop.wait()
    log.info("sidecar_draining", drain_timeout_s=drain_timeout_s)
    await app.stop(drain_timeout_s, hurry)
    log.info("sidecar_stopped")
