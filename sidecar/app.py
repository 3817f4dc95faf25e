"""The composition root: builds the sidecar, starts it, drains it, stops it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType

import grpc.aio
import structlog
from grpc_reflection.v1alpha import reflection

from routing_hints.address import Address, TcpAddress
from routing_hints.limits import MAX_MESSAGE_BYTES
from routing_hints.metrics import MetricStore
from sidecar.decision.service import DecisionService
from sidecar.placement.compliance import COOL_DOWN_S
from sidecar.placement.engine_phase import EnginePhaseKey
from sidecar.placement.gauges import register_gauges
from sidecar.policy.holder import PolicyHolder
from sidecar.policy.reload import PolicyReloader
from sidecar.server import admin, health, servicer
from sidecar.server.conversation_admin import ConversationAdmin
from sidecar.server.drain import DrainGate
from sidecar.server.enrichment import Enricher
from sidecar.server.error_boundary import ErrorBoundary
from sidecar.server.listener import bind_all
from sidecar.server.stream import StreamServicer
from sidecar.server.tls import CertificateSource
from sidecar.server.web import WebServer, start_web
from sidecar.settings import Settings, TlsFiles
from sidecar.telemetry import metrics
from sidecar.telemetry.exporter import make_registry
from sidecar.telemetry.internal_error_log import InternalErrorLog
from sidecar.telemetry.tracing import DecisionTracer, make_tracer
from sidecar.wire.response_codec import serialize_decision

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Soft and hard limit of a call's metadata in bytes: above the soft one gRPC rejects at random.
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
    # Of one connection; a worker needs one.
    ("grpc.max_concurrent_streams", 1_024),
    # Two sidecars on one port would share its calls silently.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Clocks:
    """What decisions take the time from, in seconds: one that never goes back, and one since the epoch."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


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
        self._reloader.request_reload()

    async def stop(self, drain_timeout_s: float, hurry: asyncio.Event | None = None) -> None:
        """Says so in health, lets streams end after the batch at hand, then stops.

        Args:
            drain_timeout_s: seconds to wait for streams and calls; then they are cancelled.
            hurry: ends the wait early when set.
        """
        deadline = time.monotonic() + drain_timeout_s
        self._health.set("accepting", False)
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
    settings: Settings,
    holder: PolicyHolder,
    environment: Mapping[str, str] = MappingProxyType({}),
    clocks: Clocks = Clocks(),
) -> App:
    """Builds and starts a sidecar.

    Args:
        settings: where to listen, and how.
        holder: gives the policy in force.
        environment: OpenTelemetry's variables, where spans are wanted.
        clocks: what decisions take the time from.

    Raises:
        ConfigurationError: an address can't be bound, or the TLS files are unusable.
    """
    store = MetricStore(metrics.TABLE)
    store.set_reader(metrics.POLICY_INFO, lambda: [(_label_policy(holder), 1)])
    store.set_reader(metrics.BUILD_INFO, lambda: [((version("routing-hint-sidecar"),), 1)])
    internal_errors = InternalErrorLog(store)
    error_boundary = ErrorBoundary(store, internal_errors)
    gate = DrainGate()
    well = health.Health(("listener", "accepting"))
    tracer = make_tracer(environment)
    service = DecisionService(
        lambda: holder.current.compiled,
        store,
        serialize_decision,
        clock=clocks.monotonic,
        wall_clock=clocks.wall,
        on_pause=lambda key: _note_pause(key, service),
        on_generation=lambda worker_id: streams.push_generation(worker_id),
        on_ended=lambda conversation: streams.push_ended(conversation),
    )
    register_gauges(store, service.placement, clocks.monotonic)
    enricher = Enricher(service, store, tracer)
    streams = StreamServicer(enricher, service, holder, store, internal_errors, gate, clocks.wall)
    conversations = ConversationAdmin(service, clocks.monotonic)
    reloader = PolicyReloader(holder, settings.policy, store, internal_errors, clock=clocks.wall)
    names = (servicer.SERVICE_NAME, admin.SERVICE_NAME)

    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        (
            servicer.RoutingHintsServicer(enricher, streams).make_handler(error_boundary),
            admin.AdminServicer(
                conversations, holder, service.recorder, store, streams, clocks.wall()
            ).make_handler(error_boundary),
            health.HealthServicer(well, names, gate).make_handler(error_boundary),
        )
    )
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    tls = settings.tls
    credentials = CertificateSource(tls, store).make_credentials() if tls is not None else None
    bound = bind_all(server, settings.listen, settings.socket_access, credentials)
    web = None
    if settings.metrics_listen is not None:
        web = await start_web(settings.metrics_listen, make_registry(store), well)
    await server.start()
    well.set("listener", True)
    well.set("accepting", True)
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


def _note_pause(key: EnginePhaseKey, service: DecisionService) -> None:
    log = structlog.get_logger("sidecar")
    log.warning("placement_not_honored", phase=key.phase.name.lower(), resumes_in_s=COOL_DOWN_S)
    asyncio.get_running_loop().call_later(COOL_DOWN_S, service.resume, key.worker_id)


def _label_policy(holder: PolicyHolder) -> tuple[str, str, str]:
    policy = holder.current.compiled
    return (policy.identity_epoch, policy.mode, policy.revision)


async def run(settings: Settings, holder: PolicyHolder, clocks: Clocks = Clocks()) -> None:
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
    app = await start_app(settings, holder, os.environ, clocks)
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
