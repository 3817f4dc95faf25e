"""The one stream between a worker and its sidecar.

One writer task and one reader task own the call; request tasks only put a question into a queue and wait for
their own future. Cancelling a task inside the call's own read or write would end the stream for everybody.
What is in the queue when the writer comes by travels in one message, so that requests which arrive together
travel together and a single one waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import grpc

from routing_hints.v1 import service_pb2
from worker_client import _stub, codec, unary
from worker_client._call import Question
from worker_client._circuit_breaker import Silence
from worker_client._config import ClientConfig, grpc_target
from worker_client._model import Answer, ClientPolicy
from worker_client._once_logger import Announcer
from worker_client._send_queue import MAX_BATCH_FINISHES, Mailbox
from worker_client._stats import Stats

_FINISH_DELAY_S = 0.05
"""How long the end of a request waits for a message that goes out anyway."""
_PAUSE_AFTER_LOSS_S = 0.25
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
        self._mailbox = Mailbox(stats, self._on_defect)
        self._silence = Silence(announcer, config.unknown_timeout_s)
        self._wake_writer = asyncio.Event()
        self._finish_timer: asyncio.TimerHandle | None = None
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
        self._failure = "client-closed"
        self._release_all()

    def ask(self, question: Question) -> str:
        """Queues a question; returns why nobody will wait for its answer, empty if somebody should."""
        if self._failure:
            return self._failure
        if self._silence.is_unresponsive(question.asked_at_s):
            self._silence.announce("unresponsive")
            return "unresponsive"
        if not self._mailbox.add_question(question):
            return "too-many-unanswered"
        self._silence.note_asked(question.asked_at_s)
        self._wake_writer.set()
        return ""

    def finish(self, question: Question, finish: service_pb2.Finish) -> None:
        """Queues the end of a question's request, if the sidecar has heard of it at all.

        It travels with the next questions, or by itself after `_FINISH_DELAY_S`.
        """
        if not question.is_sent:
            return
        self._mailbox.add_finish(question, finish, is_stream_up=not self._failure)
        if len(self._mailbox.finishes) >= MAX_BATCH_FINISHES:
            self._wake_writer.set()
        elif self._finish_timer is None and self._runner is not None:
            loop = self._runner.get_loop()
            self._finish_timer = loop.call_later(_FINISH_DELAY_S, self._send_finishes)

    def _send_finishes(self) -> None:
        self._finish_timer = None
        self._wake_writer.set()

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
            self._mailbox.end_stream()
        if reason != self._failure:
            self._failure = reason
            self._stats.count("stream_lost", reason)
        self._silence.announce(reason)
        self._release_all()

    async def _serve(self, call: _stub.EnrichCall) -> str:
        """Runs one stream until it ends; returns why, as a reason token."""
        self._mailbox.begin_stream()
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
        self._silence.note_heard()
        self._announcer.announce_no_stream()
        return await unary.ask_singly(
            enrich, self._next_question, self._encode_alone, self._settle, timeout_s
        )

    async def _next_question(self) -> Question | None:
        while not self._is_closing:
            question = self._mailbox.next_question()
            if question is not None:
                return question
            self._mailbox.drop_finishes()
            self._wake_writer.clear()
            await self._wake_writer.wait()
        return None

    def _encode_alone(self, question: Question) -> service_pb2.EnrichRequest:
        message = service_pb2.EnrichRequest()
        try:
            self._mailbox.fill(message, question, codec.name_every_carrier(question.facts))
        except Exception as error:  # noqa: BLE001  one odd request must not end everybody's questions
            self._on_defect(error)
        return message

    def _settle(self, question: Question, response: service_pb2.EnrichResponse | None) -> None:
        self._mailbox.take(question.seq)
        if response is None:
            self._reply(question, None)
            return
        self._silence.note_heard()
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
        self._silence.note_heard()
        if message.HasField("policy"):
            self.policy = codec.decode_policy(message.policy)
            self._stats.count("policy_received")
        for result in message.results:
            question = self._mailbox.take(result.seq)
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
            while not self._mailbox.is_empty:
                batch = self._mailbox.next_batch(self.policy)
                if self._mailbox.owes_nothing:
                    self._silence.note_nothing_owed()  # whoever asked gave up before the question went out
                if not batch.items and not batch.finishes:
                    break
                try:
                    await self._write(call, batch)
                except _StreamEndedError:
                    self._mailbox.put_back(batch.finishes)
                    raise
            if self._is_closing:
                await call.done_writing()
                return

    def _on_defect(self, error: Exception) -> None:
        self._stats.count("defects", type(error).__name__)
        self._announcer.announce_defect(error)

    def _release_all(self) -> None:
        self._mailbox.release_all()
        self._silence.note_nothing_owed()


class _StreamEndedError(Exception):
    """The stream ended, for a reason that the call itself knows."""


def _client_version() -> str:
    try:
        return version("routing-hint-sidecar")
    except PackageNotFoundError:
        return "unknown"
