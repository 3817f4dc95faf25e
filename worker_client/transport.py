"""The one stream between a worker and its sidecar.

One writer task and one reader task own the call; request tasks only put a question into a queue and wait for
their own future. Cancelling a task inside the call's own read or write would end the stream for everybody.
What is in the queue when the writer comes by travels in one message, so that requests which arrive together
travel together and a single one waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import grpc

from routing_hints.v1 import service_pb2, types_pb2
from worker_client import _stub, codec, unary
from worker_client.announcement import Announcer
from worker_client.config import ClientConfig, grpc_target
from worker_client.engine import EngineProfile
from worker_client.lru import LruMap
from worker_client.model import Answer, ClientPolicy
from worker_client.question import Question
from worker_client.stats import Stats

MAX_BATCH_ITEMS = 256
"""Bounds the time for which writing one message keeps the worker's loop."""
MAX_BATCH_BYTES = 1024 * 1024
MAX_WAITING = 8_192
"""Questions that may be without an answer at once, sent or not."""
MAX_FINISHES = 65_536
"""Ends of requests that are kept while the sidecar is away; beyond, the oldest are lost."""
MAX_ENGINES = 64
"""Engines of one worker whose profiles are kept ready to send."""
_FINISH_DELAY_S = 0.05
"""How long the end of a request waits for a message that goes out anyway."""
_PAUSE_AFTER_LOSS_S = 0.25
_PROBE_INTERVAL_S = 1.0
_CLOSE_TIMEOUT_S = 1.0


class Transport:
    """Carries questions, answers and ends of requests; reconnects by itself and never raises.

    Attributes:
        policy: the sidecar's policy, as last heard.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        stats: Stats,
        announcer: Announcer,
        on_answer: Callable[[Question, Answer], None],
    ) -> None:
        self.policy = ClientPolicy()
        self._config = config
        self._stats = stats
        self._announcer = announcer
        self._on_answer = on_answer
        self._unsent: deque[Question] = deque()
        self._waiting: dict[int, Question] = {}
        self._finishes: deque[service_pb2.Finish] = deque(maxlen=MAX_FINISHES)
        self._wake_writer = asyncio.Event()
        self._finish_timer: asyncio.TimerHandle | None = None
        self._last_seq = 0
        self._stream_number = 0
        self._first_unheard_s: float | None = None
        self._next_probe_s = 0.0
        self._failure = ""
        self._is_silence_announced = False
        self._is_closing = False
        self._engine_pbs: LruMap[str, types_pb2.EngineProfile] = LruMap(MAX_ENGINES)
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
        self._failure = "client-closed"
        self._release_all()

    def ask(self, question: Question) -> str:
        """Queues a question; returns why nobody will wait for its answer, empty if somebody should."""
        if self._failure:
            return self._failure
        if self._is_unresponsive(question.asked_at_s):
            self._announce_silence("unresponsive")
            return "unresponsive"
        if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
            self._drop_abandoned()
            if len(self._waiting) + len(self._unsent) >= MAX_WAITING:
                return "too-many-unanswered"
        if self._first_unheard_s is None:
            self._first_unheard_s = question.asked_at_s
        self._unsent.append(question)
        self._wake_writer.set()
        return ""

    def finish(self, question: Question, finish: service_pb2.Finish) -> None:
        """Queues the end of a question's request, if the sidecar has heard of it at all.

        It travels with the next questions, or by itself after `_FINISH_DELAY_S`.
        """
        if not question.is_sent:
            return
        if question.stream_number == self._stream_number and not self._failure:
            finish.seq = question.seq
        if len(self._finishes) == MAX_FINISHES:
            self._stats.count("finishes_lost")
        self._finishes.append(finish)
        if len(self._finishes) >= MAX_BATCH_ITEMS:
            self._wake_writer.set()
        elif self._finish_timer is None and self._runner is not None:
            loop = self._runner.get_loop()
            self._finish_timer = loop.call_later(_FINISH_DELAY_S, self._send_finishes)

    def _send_finishes(self) -> None:
        self._finish_timer = None
        self._wake_writer.set()

    def _is_unresponsive(self, now_s: float) -> bool:
        """Returns whether nothing was heard since a question for longer than anybody would wait.

        Then waiting again with each request would only add up, so all but one question a second go
        unasked until the sidecar is heard again.
        """
        if self._first_unheard_s is None or now_s - self._first_unheard_s <= self._config.unknown_timeout_s:
            return False
        if now_s >= self._next_probe_s:
            self._next_probe_s = now_s + _PROBE_INTERVAL_S
            return False
        return True

    def _drop_abandoned(self) -> None:
        self._unsent = deque(question for question in self._unsent if not question.reply.done())

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(
            grpc_target(self._config.target), options=_stub.CHANNEL_OPTIONS
        ) as channel:
            while True:
                call = _stub.open_stream(channel)
                try:
                    reason = await self._serve(call)
                    if reason == _stub.NO_METHOD:
                        reason = await self._serve_singly(_stub.find_unary(channel))
                except Exception as error:  # noqa: BLE001  a defect must not end reconnecting
                    self._on_defect(error)
                    reason = "client-defect"
                finally:
                    call.cancel()
                if self._is_closing:
                    return
                self._note_loss(reason)
                # gRPC paces its own attempts to connect; between them a new stream fails at once.
                await asyncio.sleep(_PAUSE_AFTER_LOSS_S)

    def _note_loss(self, reason: str) -> None:
        if not self._failure:
            for finish in self._finishes:
                finish.seq = 0  # it names an item of the stream that is lost
        if reason != self._failure:
            self._failure = reason
            self._stats.count("stream_lost", reason)
        self._announce_silence(reason)
        self._release_all()

    async def _serve(self, call: _stub.EnrichCall) -> str:
        """Runs one stream until it ends; returns why, as a reason token."""
        self._stream_number += 1
        try:
            hello = service_pb2.StreamHello(
                worker_id=self._config.worker_id, client_version=_client_version()
            )
            await self._write(call, service_pb2.EnrichStreamRequest(hello=hello))
            self._take(await self._read(call))
        except _StreamEndedError:
            return await _stub.describe_end(call)
        self._failure = ""
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
            defect = None if task.cancelled() else task.exception()
            if isinstance(defect, Exception) and not isinstance(defect, _StreamEndedError):
                self._on_defect(defect)
        call.cancel()
        return await _stub.describe_end(call)

    async def _serve_singly(self, enrich: _stub.Enrich) -> str:
        """Asks by unary calls until they fail; returns why, as a reason token.

        Without a policy nothing may be remembered, and there is no RPC for the ends of requests.
        """
        timeout_s = self._config.unknown_timeout_s
        if reason := await unary.probe(enrich, timeout_s):
            return reason
        self._failure = ""
        self.policy = ClientPolicy()
        self._note_heard()
        self._announcer.announce_no_stream()
        return await unary.ask_singly(
            enrich, self._next_question, self._encode_alone, self._settle, timeout_s
        )

    async def _next_question(self) -> Question | None:
        while not self._is_closing:
            while self._unsent:
                question = self._unsent.popleft()
                if not question.reply.done():
                    self._note_sent(question)
                    return question
            if self._finishes:
                self._stats.count("finishes_lost", amount=len(self._finishes))
                self._finishes.clear()
            self._wake_writer.clear()
            await self._wake_writer.wait()
        return None

    def _encode_alone(self, question: Question) -> service_pb2.EnrichRequest:
        message = service_pb2.EnrichRequest()
        try:
            self._fill(message, question, codec.name_every_carrier(question.facts))
        except Exception as error:  # noqa: BLE001  one odd request must not end everybody's questions
            self._on_defect(error)
        return message

    def _settle(self, question: Question, response: service_pb2.EnrichResponse | None) -> None:
        self._waiting.pop(question.seq, None)
        if response is None:
            self._reply(question, None)
            return
        self._note_heard()
        self._reply(question, codec.decode_answer(response))

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
        self._note_heard()
        if message.HasField("policy"):
            self.policy = codec.decode_policy(message.policy)
            self._stats.count("policy_received")
        for result in message.results:
            question = self._waiting.pop(result.seq, None)
            if question is None:
                continue
            if result.WhichOneof("outcome") != "response":
                self._stats.count("item_refused", result.error.field or "internal")
                self._reply(question, None)
                continue
            answer = codec.decode_answer(result.response)
            self._on_answer(question, answer)
            self._reply(question, answer)

    def _reply(self, question: Question, answer: Answer | None) -> None:
        if not question.reply.done():
            question.reply.set_result(answer)
        elif answer is not None and question.is_late:
            self._stats.count("late_answers")

    async def _write_all(self, call: _stub.EnrichCall) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            while self._unsent or self._finishes:
                batch = self._next_batch()
                if not batch.items and not batch.finishes:
                    break
                try:
                    await self._write(call, batch)
                except _StreamEndedError:
                    lost = len(self._finishes) + len(batch.finishes) - MAX_FINISHES
                    if lost > 0:
                        self._stats.count("finishes_lost", amount=lost)
                    self._finishes.extendleft(reversed(batch.finishes))
                    raise
            if self._is_closing:
                await call.done_writing()
                return

    def _next_batch(self) -> service_pb2.EnrichStreamRequest:
        batch = service_pb2.EnrichStreamRequest()
        size_bytes = 0
        while self._unsent and len(batch.items) < MAX_BATCH_ITEMS and size_bytes < MAX_BATCH_BYTES:
            question = self._unsent.popleft()
            if question.reply.done():
                continue  # its caller gave up before it went out, so the sidecar never hears of it
            try:
                size_bytes += self._add_item(batch, question)
            except Exception as error:  # noqa: BLE001  one odd request must not end everybody's stream
                self._on_defect(error)
                self._waiting.pop(question.seq, None)
                del batch.items[-1]
                question.stream_number = 0
                question.reply.set_result(None)
        while self._finishes and len(batch.finishes) < MAX_BATCH_ITEMS and size_bytes < MAX_BATCH_BYTES:
            finish = self._finishes.popleft()
            batch.finishes.append(finish)
            size_bytes += finish.ByteSize()
        if not self._waiting and not self._unsent:
            self._first_unheard_s = None  # whoever asked gave up before the question went out
        return batch

    def _add_item(self, batch: service_pb2.EnrichStreamRequest, question: Question) -> int:
        self._note_sent(question)
        item = batch.items.add(seq=question.seq)
        self._fill(item.request, question, self.policy)
        return item.ByteSize()

    def _note_sent(self, question: Question) -> None:
        self._last_seq += 1
        question.seq = self._last_seq
        question.stream_number = self._stream_number
        self._waiting[question.seq] = question

    def _fill(self, message: service_pb2.EnrichRequest, question: Question, policy: ClientPolicy) -> None:
        question.follow(policy)
        codec.fill_request(
            message,
            question.facts,
            policy,
            engine_pb=self._engine_pb(question.engine),
            router_rank=question.facts.router_rank,
            known_rank=question.known_rank,
        )

    def _engine_pb(self, engine: EngineProfile) -> types_pb2.EngineProfile:
        message = self._engine_pbs.get(engine.instance_id)
        if message is None:
            message = codec.encode_engine(engine)
            self._engine_pbs.put(engine.instance_id, message)
        return message

    def _on_defect(self, error: Exception) -> None:
        self._stats.count("defects", type(error).__name__)
        self._announcer.announce_defect(error)

    def _note_heard(self) -> None:
        self._first_unheard_s = None
        if self._is_silence_announced:
            self._is_silence_announced = False
            self._announcer.announce_recovery()

    def _announce_silence(self, reason: str) -> None:
        if not self._is_silence_announced:
            self._is_silence_announced = True
            self._announcer.announce_silence(reason)

    def _release_all(self) -> None:
        """Lets everybody who waits go on without the sidecar."""
        for question in (*self._waiting.values(), *self._unsent):
            if not question.reply.done():
                question.reply.set_result(None)
        self._waiting.clear()
        self._unsent.clear()
        self._first_unheard_s = None


class _StreamEndedError(Exception):
    """The stream ended, for a reason that the call itself knows."""


def _client_version() -> str:
    try:
        return version("routing-hint-sidecar")
    except PackageNotFoundError:
        return "unknown"
