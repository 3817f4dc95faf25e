"""EnrichStream: reads a batch, decides all of it, writes one response, and only then reads on.

A peer that does not read blocks the write and thereby the reading, so a stream holds one batch at most.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import grpc
import grpc.aio

from routing_hints.v1 import service_pb2
from sidecar.decision.conversation_end import Lifecycle
from sidecar.decision.outcome import OutcomeLog
from sidecar.decision.recorder import Recorder
from sidecar.decision.service import Decider
from sidecar.placement.placement import Placement
from sidecar.policy.holder import PolicyHolder
from sidecar.server.drain import DrainGate, DrainingError
from sidecar.server.error_boundary import DEFECT_MESSAGE, Context, DefectLog, parse
from sidecar.server.outlet import Outlet
from sidecar.telemetry.counters import Counters
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import UNKNOWN_CALLER, Caller, decode_finish, decode_hello

MAX_BATCH = 4_096
# So many decisions take about 2 ms; other calls get their turn in between.
_DECISIONS_PER_TURN = 64
_DRAINING = "the sidecar is draining"


class StreamServicer:
    """Serves any number of streams."""

    def __init__(
        self,
        decider: Decider,
        holder: PolicyHolder,
        recorder: Recorder,
        outcomes: OutcomeLog,
        placement: Placement,
        lifecycle: Lifecycle,
        counters: Counters,
        defects: DefectLog,
        gate: DrainGate,
    ) -> None:
        self._decider = decider
        self._holder = holder
        self._recorder = recorder
        self._outcomes = outcomes
        self._placement = placement
        self._lifecycle = lifecycle
        self._counters = counters
        self._defects = defects
        self._gate = gate
        self._numbers = count(1)
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def wait_closed(self) -> None:
        """Returns when no stream is open."""
        await self._all_closed.wait()

    async def converse(self, context: Context) -> None:
        """Serves one stream to its end.

        Raises:
            MalformedMessageError: the peer sent what is no message.
            FieldError: hello or the size of a batch breaks its documented range.
        """
        self._counters.add("streams")
        self._counters.open_streams += 1
        self._all_closed.clear()
        try:
            await self._serve(context, next(self._numbers))
        except DrainingError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _DRAINING)
        finally:
            self._counters.open_streams -= 1
            if not self._counters.open_streams:
                self._all_closed.set()

    async def _serve(self, context: Context, stream: int) -> None:
        caller = UNKNOWN_CALLER
        outlet = Outlet(context, self._holder)
        pusher: asyncio.Task[None] | None = None
        try:
            while True:
                data = await self._gate.wait(context.read)
                if data is grpc.aio.EOF:
                    return
                message = parse(service_pb2.EnrichStreamRequest, data)
                _check_batch(message)
                if pusher is None and message.HasField("hello"):
                    caller = decode_hello(message.hello)
                # First, since they free what the items of the same message are placed by.
                for finish in message.finishes:
                    self._finish(finish, stream, caller)
                response = service_pb2.EnrichStreamResponse()
                await self._decide_all(message.items, response.results, caller, stream)
                await outlet.send(response)
                if pusher is None:
                    pusher = asyncio.ensure_future(outlet.push_changes())
        finally:
            if pusher is not None:
                pusher.cancel()
                # It may also have failed, since its peer is gone; that is no news here.
                await asyncio.gather(pusher, return_exceptions=True)

    async def _decide_all(self, items: Any, results: Any, caller: Caller, stream: int) -> None:
        for number, item in enumerate(items, 1):
            self._decide(item, results.add(seq=item.seq), caller, stream)
            if number % _DECISIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _decide(
        self, item: service_pb2.EnrichItem, result: service_pb2.EnrichResult, caller: Caller, stream: int
    ) -> None:
        try:
            self._decider.decide(item.request, result.response, caller, (stream, item.seq))
            return
        except FieldError as error:
            self._counters.add("refused_items", ("code", "invalid_argument"))
            code, field, message = service_pb2.ERROR_CODE_INVALID_ARGUMENT, error.field, str(error)
        except Exception as error:  # noqa: BLE001, one item's failure must stay its own
            self._defects.report(error)
            self._counters.add("refused_items", ("code", "internal"))
            code, field, message = service_pb2.ERROR_CODE_INTERNAL, "", DEFECT_MESSAGE
        result.error.CopyFrom(service_pb2.EnrichError(code=code, field=field, message=message))

    def _finish(self, message: service_pb2.Finish, stream: int, caller: Caller) -> None:
        try:
            report = decode_finish(message)
        except FieldError:
            self._counters.add("refused_finishes")
            return
        self._placement.finish(report, stream, caller.worker_id)
        record = self._recorder.finish(report, stream)
        self._outcomes.take(report, record)
        if record is not None:
            # Last, since it forgets what the lines above still write to.
            self._lifecycle.on_finish(record.answer)


def _check_batch(message: service_pb2.EnrichStreamRequest) -> None:
    for field, entries in (("items", message.items), ("finishes", message.finishes)):
        if len(entries) > MAX_BATCH:
            raise FieldError(field, f"has more than {MAX_BATCH} entries")
