"""The composition root: builds the sidecar, starts it, drains it, stops it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import grpc.aio
import structlog
from grpc_reflection.v1alpha import reflection

from sidecar.address import Address, TcpAddress
from sidecar.decision.conversation_end import Lifecycle
from sidecar.decision.outcome import OutcomeLog
from sidecar.decision.recorder import Recorder
from sidecar.decision.service import Decider
from sidecar.decision.whereabouts import Whereabouts
from sidecar.identity.carrier_monitor import IdentityWatch
from sidecar.identity.single_use_guard import OneShotGuard
from sidecar.model import Phase
from sidecar.placement.compliance import COOL_DOWN_S
from sidecar.placement.gauges import register_gauges
from sidecar.placement.placement import Placement
from sidecar.policy.holder import PolicyHolder
from sidecar.policy.reload import PolicyReloader
from sidecar.server import admin, health, servicer
from sidecar.server.conversation_admin import ConversationAdmin
from sidecar.server.drain import DrainGate
from sidecar.server.error_boundary import DefectLog, Edge
from sidecar.server.listener import bind_all
from sidecar.server.stream import StreamServicer
from sidecar.server.tls import CertificateSource
from sidecar.server.web import WebServer, start_web
from sidecar.settings import Settings, SocketAccess, TlsFiles
from sidecar.telemetry import exporter
from sidecar.telemetry.counters import Counters, Labels
from sidecar.telemetry.tracing import DecisionTracer, make_tracer

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
        metrics_address: where its HTTP side listens; None if there is none.
    """

    addresses: tuple[Address, ...]
    metrics_address: TcpAddress | None
    _server: grpc.aio.Server
    _health: health.Health
    _gate: DrainGate
    _streams: StreamServicer
    _web: WebServer | None
    _tracer: DecisionTracer | None
    _reloader: PolicyReloader
    _reloading: asyncio.Task[None]

    def reload_policy(self) -> None:
        """Reads the policy file again soon."""
        self._reloader.ask()

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
        self._reloading.cancel()
        await asyncio.wait({self._reloading})
        left_s = max(deadline - time.monotonic(), 0.0)
        await self._server.stop(None if is_hurried else left_s)
        if self._web is not None:
            await self._web.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)


async def start_app(
    addresses: tuple[Address, ...],
    holder: PolicyHolder,
    *,
    policy_path: Path | None = None,
    metrics_listen: TcpAddress | None = None,
    socket_access: SocketAccess = SocketAccess(),  # noqa: B008, frozen
    tls: TlsFiles | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> App:
    """Builds and starts a sidecar.

    Args:
        addresses: where to listen.
        holder: gives the policy in force.
        policy_path: the file that it came from; None for the embedded policy.
        metrics_listen: where the HTTP side listens; None for none.
        socket_access: who may use socket files.
        tls: for the TCP addresses; None serves them in clear.
        environment: OpenTelemetry's variables, where spans are wanted.

    Raises:
        ConfigurationError: an address can't be bound, or the TLS files are unusable.
    """
    counters = Counters()
    counters.gauge("open_streams", lambda: [((), counters.open_streams)])
    defects = DefectLog(counters)
    edge = Edge(counters, defects)
    recorder = Recorder(time.time)
    gate = DrainGate()
    well = health.Health(("listener", "sigterm"))
    registry = exporter.make_registry(counters, holder)
    observe_latency_s = exporter.make_latency_histogram(registry).observe
    tracer = make_tracer(environment)
    placement = Placement(time.monotonic, counters, _announce_pause)
    register_gauges(counters, placement, lambda: holder.current.compiled.placement, time.monotonic)
    guard = OneShotGuard(time.monotonic)
    counters.gauge("one_shot_percent", lambda: _show_shares(guard))
    watch = IdentityWatch(guard, counters)
    lifecycle = Lifecycle(placement, counters)
    decider = Decider(holder, placement, recorder, counters, watch, lifecycle, observe_latency_s, tracer)
    outcomes = OutcomeLog(counters, Whereabouts())
    streams = StreamServicer(
        decider, holder, recorder, outcomes, placement, lifecycle, counters, defects, gate
    )
    conversations = ConversationAdmin(placement, holder, time.monotonic)
    reloader = PolicyReloader(holder, policy_path, counters, defects)
    names = (servicer.SERVICE_NAME, admin.SERVICE_NAME)

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        (
            servicer.RoutingHintsServicer(decider, streams).make_handler(edge),
            admin.AdminServicer(conversations, holder, recorder, counters, time.time()).make_handler(edge),
            health.HealthServicer(well, names, gate).make_handler(edge),
        )
    )
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    credentials = CertificateSource(tls, counters).make_credentials() if tls is not None else None
    bound = bind_all(server, addresses, socket_access, credentials)
    web = await start_web(metrics_listen, registry, well) if metrics_listen is not None else None
    await server.start()
    well.set("listener", True)
    well.set("sigterm", True)
    return App(
        tuple(bound),
        web.address if web is not None else None,
        server,
        well,
        gate,
        streams,
        web,
        tracer,
        reloader,
        asyncio.ensure_future(reloader.run()),
    )


def _announce_pause(phase: Phase) -> None:
    log = structlog.get_logger("sidecar")
    log.warning("placement_not_honoured", phase=phase.name.lower(), resumes_in_s=COOL_DOWN_S)


def _show_shares(guard: OneShotGuard) -> Iterator[tuple[Labels, float]]:
    for carrier, percent in guard.list_shares():
        yield (("carrier", carrier),), percent


async def run(settings: Settings, holder: PolicyHolder) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends the drain at once.

    SIGHUP reads the policy file again.

    Raises:
        ConfigurationError: an address can't be bound, or the TLS files are unusable.
    """
    log = structlog.get_logger("sidecar")
    stop, hurry = asyncio.Event(), asyncio.Event()

    def take_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take_signal)
    app = await start_app(
        settings.listen,
        holder,
        policy_path=settings.policy_path,
        metrics_listen=settings.metrics_listen,
        socket_access=settings.socket_access,
        tls=settings.tls,
        environment=os.environ,
    )
    loop.add_signal_handler(signal.SIGHUP, app.reload_policy)
    policy = holder.current
    log.info(
        "sidecar_started",
        listen=[str(address) for address in app.addresses],
        metrics_listen=app.metrics_address and app.metrics_address.netloc,
        tls=_describe_tls(settings.tls),
        policy=policy.origin,
        policy_revision=policy.compiled.revision,
        identity_epoch=policy.compiled.identity_epoch,
    )
    await stop.wait()
    log.info("sidecar_draining", drain_timeout_s=settings.drain_timeout_s)
    await app.stop(settings.drain_timeout_s, hurry)
    log.info("sidecar_stopped")


def _describe_tls(tls: TlsFiles | None) -> str:
    if tls is None:
        return "off"
    return "server" if tls.client_ca is None else "mutual"
