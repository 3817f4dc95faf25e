"""What waits to be sent to the sidecar, and what waits for its response."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from routing_hints.limits import MAX_ENGINES
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from worker_client import _codec, _metrics
from worker_client._engine import EngineProfile
from worker_client._lru_map import LruMap
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest

MAX_BATCH_ITEMS = 32
"""Requests in one message: the sidecar decides about it while the next is written."""
MAX_BATCH_FINISHES = 256
"""Finish reports in one message. More than requests, so that reports, which free load, never wait behind new
requests."""
MAX_BATCH_BYTES = 1024 * 1024
MAX_WAITING = 8_192
"""Requests without a response at once, sent or not."""
MAX_FINISHES = 65_536
"""Finish reports that are kept while the sidecar is away; beyond, the oldest are lost."""


class SendQueue:
    """Bounded queues of requests and of finish reports, for one stream after the other.

    Attributes:
        finishes: finish reports that are still to be sent, oldest first.
    """

    def __init__(self, store: MetricStore, on_internal_error: Callable[[Exception], None]) -> None:
        """Prepares an empty queue; `on_internal_error` receives what a request can't be encoded for."""
        self.finishes: deque[service_pb2.Finish] = deque(maxlen=MAX_FINISHES)
        self._store = store
        self._on_internal_error = on_internal_error
        self._unsent: deque[PendingRequest] = deque()
        self._waiting: dict[int, PendingRequest] = {}
        self._last_seq = 0
        self._stream_number = 0
        self._registered = LruMap[str, EngineProfile](MAX_ENGINES)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._unsent and not self.finishes

    @property
    def has_nothing_pending(self) -> bool:
        """Whether no request is without a response."""
        return not self._waiting and not self._unsent

    def begin_stream(self) -> None:
        """Begins a stream, which has no engine yet."""
        self._stream_number += 1
        self._registered = LruMap(MAX_ENGINES)

    def end_stream(self) -> None:
        """Removes the items' numbers from unsent finish reports; only the lost stream could match them."""
        for finish in self.finishes:
            finish.seq = 0

    def add_request(self, pending: PendingRequest) -> bool:
        """Queues a request; returns False where there is no room."""
        if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
            # A sidecar that responds to some and not to others must not hold the places of those for ever.
            self._unsent = deque(pending for pending in self._unsent if not pending.reply.done())
            self._waiting = {seq: sent for seq, sent in self._waiting.items() if not sent.reply.done()}
            if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
                return False
        self._unsent.append(pending)
        return True

    def resend_with_engine(self, pending: PendingRequest) -> bool:
        """Queues a request again whose engine the sidecar no longer has; returns False if that is in vain."""
        self._registered.discard(pending.engine.instance_id)
        if pending.reply.done() or pending.is_resent:
            return False
        pending.is_resent = True
        self._unsent.appendleft(pending)
        return True

    def add_finish(self, pending: PendingRequest, finish: service_pb2.Finish, *, is_stream_up: bool) -> None:
        """Queues the finish report of a request."""
        if is_stream_up and pending.stream_number == self._stream_number:
            finish.seq = pending.seq
        self._count_lost(len(self.finishes) + 1 - MAX_FINISHES)
        self.finishes.append(finish)

    def put_back(self, finishes: Iterable[service_pb2.Finish]) -> None:
        """Queues finish reports again, in front, that could not be sent."""
        returned = list(finishes)
        self._count_lost(len(self.finishes) + len(returned) - MAX_FINISHES)
        self.finishes.extendleft(reversed(returned))

    def next_batch(self, policy: ClientPolicy) -> service_pb2.EnrichStreamRequest:
        """Returns the next message to send; it may hold nothing."""
        batch = service_pb2.EnrichStreamRequest()
        size_bytes = 0
        while len(batch.items) < MAX_BATCH_ITEMS and size_bytes < MAX_BATCH_BYTES:
            pending = self._take_unsent()
            if pending is None:
                break
            try:
                item = batch.items.add(seq=pending.seq)
                pending.follow(policy)
                _codec.fill_request(item.request, pending)
                self._register(pending.engine, batch)
                size_bytes += item.ByteSize()
            except Exception as error:  # noqa: BLE001  one odd request must not end everybody's stream
                self._on_internal_error(error)
                del batch.items[-1]
                self._waiting.pop(pending.seq, None)
                pending.stream_number = 0
                pending.reply.set_result(None)
        while self.finishes and len(batch.finishes) < MAX_BATCH_FINISHES and size_bytes < MAX_BATCH_BYTES:
            finish = self.finishes.popleft()
            batch.finishes.append(finish)
            size_bytes += finish.ByteSize()
        return batch

    def take(self, seq: int) -> PendingRequest | None:
        """Returns the sent request of this number and waits for it no longer; None if it does not wait."""
        return self._waiting.pop(seq, None)

    def release_all(self) -> None:
        """Lets everybody who waits go on without the sidecar."""
        for pending in (*self._waiting.values(), *self._unsent):
            if not pending.reply.done():
                pending.reply.set_result(None)
        self._waiting.clear()
        self._unsent.clear()

    def _take_unsent(self) -> PendingRequest | None:
        """Returns the next request, numbered and waiting; None if there is none.

        One whose caller went on before it went out is dropped: the sidecar never receives it.
        """
        while self._unsent:
            pending = self._unsent.popleft()
            if pending.reply.done():
                continue
            self._last_seq += 1
            pending.seq = self._last_seq
            pending.stream_number = self._stream_number
            self._waiting[pending.seq] = pending
            return pending
        return None

    def _register(self, engine: EngineProfile, batch: service_pb2.EnrichStreamRequest) -> None:
        """Adds an engine to the message unless the stream has it."""
        if self._registered.get(engine.instance_id) is not engine:
            batch.engines.append(_codec.encode_engine(engine))
            self._registered.put(engine.instance_id, engine)

    def _count_lost(self, lost: int) -> None:
        if lost > 0:
            self._store.add(_metrics.FINISHES_LOST, amount=lost)
