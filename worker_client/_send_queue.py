"""What waits to be sent to the sidecar, and what waits for its response."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from routing_hints.limits import MAX_DROPPED_CARRIERS, MAX_ENGINES
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
_REFUSALS_PER_SWEEP = 1_024
MAX_FINISHES = 65_536
"""Finish reports that are kept while the sidecar is away; beyond, the oldest are lost."""


class SendQueue:
    """Bounded queues of requests and of finish reports, for one stream after the other.

    Attributes:
        finishes: finish reports that are still to be sent, oldest first.
        stream_number: the stream that was begun last, counted from 1.
    """

    def __init__(self, store: MetricStore, on_internal_error: Callable[[Exception], None]) -> None:
        """Prepares an empty queue; `on_internal_error` receives what a request can't be encoded for."""
        self.finishes: deque[service_pb2.Finish] = deque(maxlen=MAX_FINISHES)
        self._store = store
        self._on_internal_error = on_internal_error
        self._unsent: deque[PendingRequest] = deque()
        self._waiting: dict[int, PendingRequest] = {}
        self._last_seq = 0
        self._refusals = 0
        self.stream_number = 0
        self._registered = LruMap[str, EngineProfile](MAX_ENGINES)
        self._dropped: Counter[str] = Counter()
        # Reports of requests that ended before they were sent.
        self._late_finishes: dict[PendingRequest, service_pb2.Finish] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._unsent and not self.finishes and not self._dropped

    @property
    def unsent(self) -> int:
        """Requests that are still to be sent."""
        return len(self._unsent)

    @property
    def has_nothing_pending(self) -> bool:
        """Whether no request is without a response."""
        return not self._waiting and not self._unsent

    def begin_stream(self) -> None:
        """Begins a stream, which has no engine yet."""
        self.stream_number += 1
        self._registered = LruMap(MAX_ENGINES)

    def end_stream(self) -> None:
        """Removes the items' numbers from unsent finish reports; only the lost stream could match them."""
        for finish in self.finishes:
            finish.seq = 0

    def add_request(self, pending: PendingRequest) -> bool:
        """Queues a request; returns False where there is no room."""
        if self._is_full:
            self._sweep()
            if self._is_full:
                self._note_dropped(pending)
                return False
        self._unsent.append(pending)
        return True

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) + len(self._unsent) >= MAX_WAITING

    def _sweep(self) -> None:
        """Gives up what nobody waits for, so that a sidecar which responds to some only holds no places.

        At most once for `_REFUSALS_PER_SWEEP` requests, since it walks over all of them.
        """
        self._refusals += 1
        if self._refusals % _REFUSALS_PER_SWEEP == 1:
            self._unsent = deque(pending for pending in self._unsent if not pending.is_over)
            self._waiting = {seq: sent for seq, sent in self._waiting.items() if not sent.is_over}

    def resend_with_engine(self, pending: PendingRequest) -> bool:
        """Queues a request again whose engine the sidecar no longer has; returns False if that is in vain."""
        self._registered.discard(pending.engine.instance_id)
        if pending.is_over or pending.is_resent:
            return False
        pending.is_resent = True
        self._unsent.appendleft(pending)
        return True

    def add_finish(self, pending: PendingRequest, finish: service_pb2.Finish, *, is_stream_up: bool) -> None:
        """Queues the finish report of a request; of one that is still to be sent, once it was.

        Never in the message of its item: the sidecar takes finish reports first.
        """
        if pending.is_dropped:
            return
        if not pending.stream_number:
            self._late_finishes[pending] = finish
            return
        if is_stream_up and pending.stream_number == self.stream_number:
            finish.seq = pending.seq
        self._count_lost(len(self.finishes) + 1 - MAX_FINISHES)
        self.finishes.append(finish)

    def put_back(self, batch: service_pb2.EnrichStreamRequest) -> None:
        """Queues again what a message that could not be sent reports; finish reports in front."""
        self._count_lost(len(self.finishes) + len(batch.finishes) - MAX_FINISHES)
        self.finishes.extendleft(reversed(batch.finishes))
        for dropped in batch.dropped:
            self._dropped[dropped.source_detail] += dropped.count

    def next_batch(self, policy: ClientPolicy) -> service_pb2.EnrichStreamRequest:
        """Returns the next message to send; it may hold nothing."""
        batch = service_pb2.EnrichStreamRequest()
        size_bytes, sent = 0, []
        for source_detail, count in self._dropped.most_common(MAX_DROPPED_CARRIERS):
            batch.dropped.add(source_detail=source_detail, count=count)
            del self._dropped[source_detail]
        while len(batch.items) < MAX_BATCH_ITEMS and size_bytes < MAX_BATCH_BYTES:
            pending = self._take_unsent()
            if pending is None:
                break
            try:
                item = batch.items.add(seq=pending.seq)
                pending.follow(policy)
                _codec.fill_item(item, pending)
                self._register(pending.engine, batch)
                size_bytes += item.ByteSize()
                sent.append(pending)
            except Exception as error:  # noqa: BLE001  one odd request must not end everybody's stream
                self._on_internal_error(error)
                del batch.items[-1]
                self._waiting.pop(pending.seq, None)
                pending.stream_number = 0
                pending.settle(None)
                self._note_dropped(pending)
        while self.finishes and len(batch.finishes) < MAX_BATCH_FINISHES and size_bytes < MAX_BATCH_BYTES:
            finish = self.finishes.popleft()
            batch.finishes.append(finish)
            size_bytes += finish.ByteSize()
        for pending in sent:
            if (late := self._late_finishes.pop(pending, None)) is not None:
                self.add_finish(pending, late, is_stream_up=True)
        return batch

    def take(self, seq: int) -> PendingRequest | None:
        """Returns the sent request of this number and waits for it no longer; None if it does not wait."""
        return self._waiting.pop(seq, None)

    def release_all(self) -> None:
        """Lets everybody who waits go on without the sidecar."""
        for pending in (*self._waiting.values(), *self._unsent):
            pending.settle(None)
        for pending in self._unsent:
            self._note_dropped(pending)
        self._waiting.clear()
        self._unsent.clear()

    def _take_unsent(self) -> PendingRequest | None:
        """Returns the next request, numbered and waiting; None if there is none.

        One whose caller went on before it went out is dropped: the sidecar never receives it.
        """
        while self._unsent:
            pending = self._unsent.popleft()
            if pending.is_over:
                continue
            self._last_seq += 1
            pending.seq = self._last_seq
            pending.stream_number = self.stream_number
            self._waiting[pending.seq] = pending
            return pending
        return None

    def _register(self, engine: EngineProfile, batch: service_pb2.EnrichStreamRequest) -> None:
        """Adds an engine to the message unless the stream has it."""
        if self._registered.get(engine.instance_id) is not engine:
            batch.engines.append(_codec.encode_engine(engine))
            self._registered.put(engine.instance_id, engine)

    def _note_dropped(self, pending: PendingRequest) -> None:
        """Counts a request that is not sent although a remembered decision was applied to it."""
        if pending.applied is not None:
            pending.is_dropped = True
            self._late_finishes.pop(pending, None)
            self._dropped[pending.applied.source_detail] += 1
            self._store.add(_metrics.REUSE_DROPPED, pending.applied.source.name.lower())

    def _count_lost(self, lost: int) -> None:
        if lost > 0:
            self._store.add(_metrics.FINISHES_LOST, amount=lost)
