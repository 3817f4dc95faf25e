"""What waits to be sent to the sidecar, and what waits for its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from routing_hints.v1 import service_pb2, types_pb2
from worker_client import codec
from worker_client._call import Question
from worker_client._engine import EngineProfile
from worker_client._lru_map import LruMap
from worker_client._model import ClientPolicy
from worker_client._stats import Stats

MAX_BATCH_ITEMS = 32
"""Questions in one message: the sidecar decides about it while the next is written."""
MAX_BATCH_FINISHES = 256
"""Ends in one message. More than of questions, which are decided by the load that the ends take off."""
MAX_BATCH_BYTES = 1024 * 1024
MAX_WAITING = 8_192
"""Questions that may be without an answer at once, sent or not."""
MAX_FINISHES = 65_536
"""Ends of requests that are kept while the sidecar is away; beyond, the oldest are lost."""
MAX_ENGINES = 64
"""Engines of one worker whose profiles are kept ready to send."""


class Mailbox:
    """Bounded queues of questions and of the ends of their requests.

    Attributes:
        finishes: ends of requests that are still to be sent, oldest first.
    """

    def __init__(self, stats: Stats, on_defect: Callable[[Exception], None]) -> None:
        """Prepares an empty mailbox; `on_defect` hears of a question that can't be written down."""
        self.finishes: deque[service_pb2.Finish] = deque(maxlen=MAX_FINISHES)
        self._stats = stats
        self._on_defect = on_defect
        self._unsent: deque[Question] = deque()
        self._waiting: dict[int, Question] = {}
        self._last_seq = 0
        self._stream_number = 0
        self._engine_pbs: LruMap[str, types_pb2.EngineProfile] = LruMap(MAX_ENGINES)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._unsent and not self.finishes

    @property
    def owes_nothing(self) -> bool:
        """Whether no question is without an answer."""
        return not self._waiting and not self._unsent

    def begin_stream(self) -> None:
        """Tells the questions of a new stream from those of the one before."""
        self._stream_number += 1

    def end_stream(self) -> None:
        """Takes from unsent ends the names of their items, which only the lost stream knew."""
        for finish in self.finishes:
            finish.seq = 0

    def add_question(self, question: Question) -> bool:
        """Queues a question; returns False where there is no room."""
        if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
            # A sidecar that answers some and not others must not hold the places of those for ever.
            self._unsent = deque(question for question in self._unsent if not question.reply.done())
            self._waiting = {seq: sent for seq, sent in self._waiting.items() if not sent.reply.done()}
            if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
                return False
        self._unsent.append(question)
        return True

    def add_finish(self, question: Question, finish: service_pb2.Finish, *, is_stream_up: bool) -> None:
        """Queues the end of a question's request."""
        if is_stream_up and question.stream_number == self._stream_number:
            finish.seq = question.seq
        self._count_lost(len(self.finishes) + 1 - MAX_FINISHES)
        self.finishes.append(finish)

    def put_back(self, finishes: Iterable[service_pb2.Finish]) -> None:
        """Queues ends again, in front, that could not be sent."""
        returned = list(finishes)
        self._count_lost(len(self.finishes) + len(returned) - MAX_FINISHES)
        self.finishes.extendleft(reversed(returned))

    def drop_finishes(self) -> None:
        """Loses the ends, where the sidecar can't be told of them."""
        self._count_lost(len(self.finishes))
        self.finishes.clear()

    def next_batch(self, policy: ClientPolicy) -> service_pb2.EnrichStreamRequest:
        """Returns the next message to send; it may hold nothing."""
        batch = service_pb2.EnrichStreamRequest()
        size_bytes = 0
        while len(batch.items) < MAX_BATCH_ITEMS and size_bytes < MAX_BATCH_BYTES:
            question = self.next_question()
            if question is None:
                break
            try:
                item = batch.items.add(seq=question.seq)
                self.fill(item.request, question, policy)
                size_bytes += item.ByteSize()
            except Exception as error:  # noqa: BLE001  one odd request must not end everybody's stream
                self._on_defect(error)
                del batch.items[-1]
                self._waiting.pop(question.seq, None)
                question.stream_number = 0
                question.reply.set_result(None)
        while self.finishes and len(batch.finishes) < MAX_BATCH_FINISHES and size_bytes < MAX_BATCH_BYTES:
            finish = self.finishes.popleft()
            batch.finishes.append(finish)
            size_bytes += finish.ByteSize()
        return batch

    def next_question(self) -> Question | None:
        """Returns the next question, from now on a sent one; None if there is none.

        One whose caller gave up before it went out is dropped: the sidecar never hears of it.
        """
        while self._unsent:
            question = self._unsent.popleft()
            if question.reply.done():
                continue
            self._last_seq += 1
            question.seq = self._last_seq
            question.stream_number = self._stream_number
            self._waiting[question.seq] = question
            return question
        return None

    def fill(self, message: service_pb2.EnrichRequest, question: Question, policy: ClientPolicy) -> None:
        """Writes a question down as the contract has it."""
        question.follow(policy)
        codec.fill_request(
            message,
            question.facts,
            question.carried,
            engine_pb=self._engine_pb(question.engine),
            router_rank=question.facts.router_rank,
            known_rank=question.known_rank,
        )

    def take(self, seq: int) -> Question | None:
        """Returns the sent question of this number and waits for it no longer; None if it does not wait."""
        return self._waiting.pop(seq, None)

    def release_all(self) -> None:
        """Lets everybody who waits go on without the sidecar."""
        for question in (*self._waiting.values(), *self._unsent):
            if not question.reply.done():
                question.reply.set_result(None)
        self._waiting.clear()
        self._unsent.clear()

    def _engine_pb(self, engine: EngineProfile) -> types_pb2.EngineProfile:
        message = self._engine_pbs.get(engine.instance_id)
        if message is None:
            message = codec.encode_engine(engine)
            self._engine_pbs.put(engine.instance_id, message)
        return message

    def _count_lost(self, lost: int) -> None:
        if lost > 0:
            self._stats.count("finishes_lost", amount=lost)
