"""EnrichStream: reads a message, decides all of it, writes one response, and only then reads on.

A peer that does not read blocks the write and thereby the reading, so a stream holds one message at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import structlog

from routing_hints.conversation_id import ConversationHash
from routing_hints.limits import MAX_BATCH_ENTRIES, MAX_DROPPED_CARRIERS, MAX_ENDED, MAX_ENGINES
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from sidecar.decision.service import DecisionService
from sidecar.policy.holder import ActivePolicy, PolicyHolder
from sidecar.server.drain import DrainGate, DrainingError
from sidecar.server.enrichment import Enricher
from sidecar.server.error_boundary import INTERNAL_ERROR_MESSAGE, Context, parse
from sidecar.telemetry import metrics
from sidecar.telemetry.internal_error_log import InternalErrorLog
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.field_limit import HELLO_LIMITS, FieldError, check_count, check_strings
from sidecar.wire.request_codec import decode_finish
from sidecar.wire.response_codec import encode_client_policy

# That many decisions take about 2 ms; other calls get their turn in between.
_DECISIONS_PER_TURN = 64
_DRAINING = "the sidecar is draining"


@dataclass(slots=True)
class Stream:
    """One open stream.

    Attributes:
        number: counts the streams of this sidecar from 1; with a `seq` it names an item.
        opened_at: seconds since the epoch.
        worker_id, client_version: as its hello states them.
        engines: the engines that its items may refer to.
        writer: writes its responses; None before the first message.
    """

    number: int
    opened_at: float
    worker_id: str = ""
    client_version: str = ""
    engines: EngineRegistry = field(default_factory=EngineRegistry)
    writer: StreamWriter | None = None
    is_greeted: bool = False


class StreamServicer:
    """Serves any number of streams.

    Args:
        enricher: decides about items.
        service: takes finish reports.
        holder: gives the policy to send.
        store: counts.
        internal_errors: reports what no rule accounts for.
        gate: ends streams when the sidecar stops.
        wall_clock: gives the seconds since the epoch.
    """

    def __init__(
        self,
        enricher: Enricher,
        service: DecisionService,
        holder: PolicyHolder,
        store: MetricStore,
        internal_errors: InternalErrorLog,
        gate: DrainGate,
        wall_clock: Callable[[], float],
    ) -> None:
        self._enricher = enricher
        self._service = service
        self._holder = holder
        self._store = store
        self._internal_errors = internal_errors
        self._gate = gate
        self._wall_clock = wall_clock
        self._numbers = count(1)
        self._open: dict[int, Stream] = {}
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._log = structlog.get_logger("sidecar")
        store.set_reader(metrics.OPEN_STREAMS, lambda: [((), len(self._open))])

    @property
    def open_streams(self) -> Mapping[int, Stream]:
        """The open streams by number, oldest first."""
        return MappingProxyType(self._open)

    async def wait_closed(self) -> None:
        """Returns when no stream is open."""
        await self._all_closed.wait()

    def push_generation(self, worker_id: str | None) -> None:
        """Sends a worker's reuse generation, or everybody's for None, to the streams that it is for."""
        for stream in self._open.values():
            if stream.writer is not None and worker_id in (None, stream.worker_id):
                stream.writer.wake()

    def push_ended(self, conversation: ConversationHash) -> None:
        """Lets every client forget a conversation."""
        for stream in self._open.values():
            if stream.writer is not None:
                stream.writer.add_ended(conversation)

    async def converse(self, context: Context) -> None:
        """Serves one stream to its end.

        Raises:
            MalformedMessageError: the peer sent something other than a message.
            FieldError: hello, an engine or the size of a batch breaks its documented range.
        """
        stream = Stream(next(self._numbers), self._wall_clock())
        self._store.add(metrics.STREAMS)
        self._open[stream.number] = stream
        self._all_closed.clear()
        try:
            await self._serve(context, stream)
        except DrainingError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _DRAINING)
        finally:
            del self._open[stream.number]
            if not self._open:
                self._all_closed.set()

    async def _serve(self, context: Context, stream: Stream) -> None:
        stream.writer = writer = StreamWriter(context, self._holder, self._service, stream)
        pusher: asyncio.Task[None] | None = None
        try:
            while True:
                data = await self._gate.wait(context.read)
                if data is grpc.aio.EOF:
                    return
                message = parse(service_pb2.EnrichStreamRequest, data)
                self._open_message(message, stream)
                for finish in message.finishes:
                    self._finish(finish, stream)
                for dropped in message.dropped:
                    self._service.record_dropped(dropped.source_detail, dropped.count)
                response = service_pb2.EnrichStreamResponse()
                await self._decide_all(message.items, response.results, stream, writer)
                await writer.send(response)
                if pusher is None:
                    pusher = asyncio.ensure_future(writer.push_changes())
        finally:
            if pusher is not None:
                pusher.cancel()
                # It may also have failed, since its peer is gone, which is known here already.
                await asyncio.gather(pusher, return_exceptions=True)

    def _open_message(self, message: service_pb2.EnrichStreamRequest, stream: Stream) -> None:
        check_count(len(message.items), MAX_BATCH_ENTRIES, "items")
        check_count(len(message.finishes), MAX_BATCH_ENTRIES, "finishes")
        check_count(len(message.engines), MAX_ENGINES, "engines")
        check_count(len(message.dropped), MAX_DROPPED_CARRIERS, "dropped")
        if not stream.is_greeted:
            hello = message.hello
            check_strings(hello, HELLO_LIMITS, "hello.")
            stream.is_greeted = True
            stream.worker_id, stream.client_version = hello.worker_id, hello.client_version
            self._log.info("stream_opened", worker_id=hello.worker_id, client_version=hello.client_version)
        for profile in message.engines:
            if stream.engines.register(profile):
                self._log.info(
                    "engine_registered",
                    worker_id=stream.worker_id,
                    instance_id=profile.instance_id,
                    dp_size=profile.dp_size,
                    tensorrt_llm_version=profile.version,
                )

    async def _decide_all(self, items: Any, results: Any, stream: Stream, writer: StreamWriter) -> None:
        for number, item in enumerate(items, 1):
            self._decide(item, results.add(seq=item.seq), stream, writer)
            if number % _DECISIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _decide(
        self,
        item: service_pb2.EnrichItem,
        result: service_pb2.EnrichResult,
        stream: Stream,
        writer: StreamWriter,
    ) -> None:
        # Taken before: the request itself may suspend its carrier, after it was decided.
        generation = writer.generation
        try:
            self._enricher.enrich_item(item, result, stream.number, stream.worker_id, stream.engines)
            result.generation = generation
            return
        except FieldError as error:
            code, field_path, text = service_pb2.ERROR_CODE_INVALID_ARGUMENT, error.field, str(error)
            self._store.add(metrics.REFUSED_ITEMS, "invalid_argument")
        except Exception as error:  # noqa: BLE001, one item's failure must stay its own
            code, field_path, text = service_pb2.ERROR_CODE_INTERNAL, "", INTERNAL_ERROR_MESSAGE
            self._internal_errors.report(error)
            self._store.add(metrics.REFUSED_ITEMS, "internal")
        result.error.CopyFrom(service_pb2.EnrichError(code=code, field=field_path, message=text))

    def _finish(self, message: service_pb2.Finish, stream: Stream) -> None:
        try:
            self._service.finish(decode_finish(message), stream.number, stream.worker_id)
        except FieldError:
            self._store.add(metrics.REFUSED_FINISHES)


class StreamWriter:
    """Writes one stream's responses, one at a time, since gRPC takes no two writes at once."""

    def __init__(
        self, context: Context, holder: PolicyHolder, service: DecisionService, stream: Stream
    ) -> None:
        self._context = context
        self._holder = holder
        self._service = service
        self._stream = stream
        self._lock = asyncio.Lock()
        self._is_dirty = asyncio.Event()
        self._sent_policy: ActivePolicy | None = None
        self._sent_generation = 0
        self._ended: list[ConversationHash] = []
        self._overflows = 0

    @property
    def generation(self) -> int:
        """The reuse generation in force for this stream."""
        return self._service.generation_of(self._stream.worker_id) + self._overflows

    def wake(self) -> None:
        """Sends soon what has changed."""
        self._is_dirty.set()

    def add_ended(self, conversation: ConversationHash) -> None:
        """Sends soon that a conversation was ended; of too many at once, that everything may have changed."""
        self._ended.append(conversation)
        if len(self._ended) > MAX_ENDED:
            self._ended.clear()
            self._overflows += 1
        self._is_dirty.set()

    async def send(self, response: service_pb2.EnrichStreamResponse) -> None:
        """Writes a response, with what the peer does not have yet; nothing if there is nothing to write."""
        async with self._lock:
            policy, generation = self._holder.current, self.generation
            is_new = policy is not self._sent_policy or generation != self._sent_generation
            if is_new:
                message = encode_client_policy(policy.view, generation, policy.changes_at)
                response.policy.CopyFrom(message)
            response.ended.extend(self._ended)
            self._ended.clear()
            if is_new or response.results or response.ended:
                await self._context.write(response.SerializeToString())
                self._sent_policy, self._sent_generation = policy, generation

    async def push_changes(self) -> None:
        """Sends every change, also while the peer is idle; never returns."""
        while True:
            # Taken before the write, during which the policy may change.
            policy_change = self._holder.next_change
            self._is_dirty.clear()
            await self.send(service_pb2.EnrichStreamResponse())
            waits = [asyncio.ensure_future(event.wait()) for event in (policy_change, self._is_dirty)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
