"""The one stream between a worker and its sidecar.

One writer task and one reader task own the call; request tasks only put a request into a queue and wait for
their own future. Cancelling a task inside the call's own read or write would end the stream for everybody.
What is in the queue when the writer comes by travels in one message, so that requests which arrive together
travel together and a single one waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import grpc

from routing_hints import tokens
from routing_hints.address import parse_address
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from worker_client import _codec, _metrics, _stub
from worker_client._circuit_breaker import CircuitBreaker
from worker_client._config import ClientConfig
from worker_client._model import ClientPolicy, Decision
from worker_client._once_logger import OnceLogger
from worker_client._pending_request import PendingRequest
from worker_client._send_queue import MAX_BATCH_FINISHES, MAX_BATCH_ITEMS, SendQueue

_ENGINE_INSTANCE = "engine_instance"
_ERROR_CODES = {
    service_pb2.ERROR_CODE_INVALID_ARGUMENT: "invalid_argument",
    service_pb2.ERROR_CODE_INTERNAL: "internal",
}
_FINISH_DELAY_S = 0.05
"""How long a finish report waits for a message that goes out anyway."""
_REUSE_DELAY_S = 0.02
"""How long a request that nobody waits for waits for a message that goes out anyway."""
_PAUSE_AFTER_LOSS_S = 0.25
_CLOSE_TIMEOUT_S = 1.0


class Transport:
    """Carries requests, decisions and finish reports; reconnects by itself and never raises.

    Args:
        config: the settings.
        store: counts.
        once_logger: logs outages.
        get_policy: gives the policy by which requests are sent.
        on_policy: receives each policy of the sidecar.
        on_decision: receives each result, in time or not, with its generation; None is an unchanged decision.
        on_ended: receives the hash of each conversation that was ended.
    """

    def __init__(
        self,
        config: ClientConfig,
        store: MetricStore,
        once_logger: OnceLogger,
        *,
        get_policy: Callable[[], ClientPolicy],
        on_policy: Callable[[ClientPolicy], None],
        on_decision: Callable[[PendingRequest, Decision | None, int], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._config = config
        self._store = store
        self._once_logger = once_logger
        self._get_policy = get_policy
        self._on_policy = on_policy
        self._on_decision = on_decision
        self._on_ended = on_ended
        self._queue = SendQueue(store, self._on_internal_error)
        self._breaker = CircuitBreaker(once_logger, config.unknown_timeout_s)
        self._wake_writer = asyncio.Event()
        self._finish_timer: asyncio.TimerHandle | None = None
        self._reuse_timer: asyncio.TimerHandle | None = None
        self._is_up = False
        self._failure = ""
        self._is_closing = False
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts connecting, in the running loop. Idempotent."""
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="routing-hints-stream")

    async def close(self) -> None:
        """Sends what is still unsent if the stream is up, and ends it, within a second."""
        if self._runner is None:
            return
        self._is_closing = True
        self._wake_writer.set()
        if not self._failure:
            await asyncio.wait({self._runner}, timeout=_CLOSE_TIMEOUT_S)
        self._runner.cancel()
        await asyncio.wait({self._runner})
        self._failure = tokens.CLIENT_CLOSED
        self._release_all()

    def submit(self, pending: PendingRequest) -> str:
        """Queues a request; returns why nobody waits for its response, empty if its caller should."""
        if self._failure:
            return self._failure
        if self._breaker.is_unresponsive(pending.submitted_at_s):
            self._breaker.log_once(tokens.CIRCUIT_OPEN)
            return tokens.CIRCUIT_OPEN
        if not self._queue.add_request(pending):
            return tokens.TOO_MANY_PENDING
        self._wake_writer.set()
        return ""

    @property
    def stream_number(self) -> int:
        """The stream that is up, counted from 1; 0 while there is none."""
        return 0 if self._failure or not self._is_up else self._queue.stream_number

    def submit_applied(self, pending: PendingRequest) -> None:
        """Queues a request that a remembered decision was applied to.

        It wakes nobody: it travels with the next message, after `_REUSE_DELAY_S`, or once a message is full.
        """
        if not self._queue.add_request(pending) or self._runner is None:
            return
        if self._queue.unsent >= MAX_BATCH_ITEMS:
            self._wake_writer.set()
        elif self._reuse_timer is None:
            self._reuse_timer = self._runner.get_loop().call_later(_REUSE_DELAY_S, self._send_applied)

    def _send_applied(self) -> None:
        self._reuse_timer = None
        self._wake_writer.set()

    def finish(self, pending: PendingRequest, finish: service_pb2.Finish) -> None:
        """Queues the finish report of a request, if the request was sent.

        It travels with the next requests, or by itself after `_FINISH_DELAY_S`.
        """
        if not pending.is_sent and pending.applied is None:
            return
        self._queue.add_finish(pending, finish, is_stream_up=not self._failure)
        self._schedule_finishes()

    def _schedule_finishes(self) -> None:
        if len(self._queue.finishes) >= MAX_BATCH_FINISHES:
            self._wake_writer.set()
        elif self._queue.finishes and self._finish_timer is None and self._runner is not None:
            loop = self._runner.get_loop()
            self._finish_timer = loop.call_later(_FINISH_DELAY_S, self._send_finishes)

    def _send_finishes(self) -> None:
        self._finish_timer = None
        self._wake_writer.set()

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(
            parse_address(self._config.target).grpc_target, options=_stub.CHANNEL_OPTIONS
        ) as channel:
            while True:
                call = _stub.open_stream(channel)
                try:
                    reason = await self._serve(call)
                except Exception as error:  # noqa: BLE001  an error of ours must not end reconnecting
                    self._on_internal_error(error)
                    reason = tokens.CLIENT_INTERNAL_ERROR
                finally:
                    call.cancel()
                if self._is_closing:
                    return
                self._note_loss(reason)
                # gRPC paces its own attempts to connect; between them a new stream fails at once.
                await asyncio.sleep(_PAUSE_AFTER_LOSS_S)

    def _note_loss(self, reason: str) -> None:
        self._is_up = False
        if not self._failure:
            self._queue.end_stream()
        if reason != self._failure:
            self._failure = reason
            self._store.add(_metrics.STREAM_LOST, reason)
        self._breaker.log_once(reason)
        self._release_all()

    async def _serve(self, call: _stub.EnrichCall) -> str:
        """Runs one stream until it ends; returns why, as a reason token."""
        self._is_up = False
        self._queue.begin_stream()
        try:
            hello = service_pb2.StreamHello(
                worker_id=self._config.worker_id, client_version=_client_version()
            )
            await self._write(call, service_pb2.EnrichStreamRequest(hello=hello))
            self._take(await self._read(call))
        except _StreamEndedError:
            return await _stub.describe_end(call)
        self._failure = ""
        self._is_up = True
        self._wake_writer.set()
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read_all(call))
        writer = loop.create_task(self._write_all(call))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and self._is_closing:
                await asyncio.wait({reader})  # the sidecar ends the stream once it has taken everything
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})
        for task in (reader, writer):
            internal_error = None if task.cancelled() else task.exception()
            if isinstance(internal_error, Exception) and not isinstance(internal_error, _StreamEndedError):
                self._on_internal_error(internal_error)
        call.cancel()
        return await _stub.describe_end(call)

    async def _read(self, call: _stub.EnrichCall) -> service_pb2.EnrichStreamResponse:
        try:
            message = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _StreamEndedError from error
        if message is grpc.aio.EOF:
            raise _StreamEndedError
        response: service_pb2.EnrichStreamResponse = message
        return response

    async def _write(self, call: _stub.EnrichCall, message: service_pb2.EnrichStreamRequest) -> None:
        try:
            await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _StreamEndedError from error

    async def _read_all(self, call: _stub.EnrichCall) -> None:
        while True:
            self._take(await self._read(call))

    def _take(self, message: service_pb2.EnrichStreamResponse) -> None:
        self._breaker.record_response()
        if message.HasField("policy"):
            self._on_policy(_codec.decode_policy(message.policy))
            self._store.add(_metrics.POLICIES_RECEIVED)
        for result in message.results:
            pending = self._queue.take(result.seq)
            if pending is None:
                continue
            outcome = result.WhichOneof("outcome")
            if outcome == "error" or outcome is None:
                self._refuse(pending, result.error)
                continue
            decision = _codec.decode_decision(result.response) if outcome == "response" else None
            self._on_decision(pending, decision, result.generation)
            self._reply(pending, decision)
        for conversation_hash in message.ended:
            self._on_ended(conversation_hash)

    def _refuse(self, pending: PendingRequest, error: service_pb2.EnrichError) -> None:
        if error.field == _ENGINE_INSTANCE and self._queue.resend_with_engine(pending):
            self._wake_writer.set()
            return
        self._store.add(_metrics.REFUSED_ITEMS, _ERROR_CODES.get(error.code, "other"))
        self._reply(pending, None)

    def _reply(self, pending: PendingRequest, decision: Decision | None) -> None:
        if not pending.settle(decision) and decision is not None and pending.is_timed_out:
            self._store.add(_metrics.LATE_DECISIONS)

    async def _write_all(self, call: _stub.EnrichCall) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            while not self._queue.is_empty:
                batch = self._queue.next_batch(self._get_policy())
                if self._queue.has_nothing_pending:
                    self._breaker.record_nothing_pending()  # every caller went on before its request was sent
                if not (batch.items or batch.finishes or batch.dropped):
                    break
                if batch.items:
                    self._breaker.record_written(asyncio.get_running_loop().time())
                try:
                    await self._write(call, batch)
                except _StreamEndedError:
                    self._queue.put_back(batch)
                    raise
                if not self._queue.unsent and not self._is_closing:
                    self._schedule_finishes()  # reports that had to wait for their items
                    break
            if self._is_closing:
                await call.done_writing()
                return

    def _on_internal_error(self, error: Exception) -> None:
        self._store.add(_metrics.INTERNAL_ERRORS, type(error).__name__)
        self._once_logger.log_internal_error(error)

    def _release_all(self) -> None:
        self._queue.release_all()
        self._breaker.record_nothing_pending()


class _StreamEndedError(Exception):
    """The stream ended, for a reason that the call itself knows."""


def _client_version() -> str:
    try:
        return version("routing-hint-sidecar")
    except PackageNotFoundError:
        return "unknown"
