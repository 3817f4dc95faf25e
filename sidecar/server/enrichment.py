"""One request from its message to its response: decoded, decided, encoded, timed and traced."""

from __future__ import annotations

import time

from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from sidecar.decision.service import Decided, DecisionService
from sidecar.model import Explanation, Request
from sidecar.telemetry import metrics
from sidecar.telemetry.tracing import DecisionTracer
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.request_codec import decode_applied, decode_request
from sidecar.wire.response_codec import encode_decision


class Enricher:
    """Serves single requests, whichever RPC they come by.

    Args:
        service: decides.
        store: gets the time that each took.
        tracer: None makes no spans.
    """

    def __init__(self, service: DecisionService, store: MetricStore, tracer: DecisionTracer | None) -> None:
        self._service = service
        self._store = store
        self._tracer = tracer

    def enrich(self, message: service_pb2.EnrichRequest, response: service_pb2.EnrichResponse) -> None:
        """Fills in the response to a request by itself, for which no finish report will come.

        Args:
            message: as it came.
            response: empty; stays so where this raises.

        Raises:
            FieldError: a field breaks its documented range.
        """
        started_s = time.perf_counter()
        request, identity = decode_request(message)
        decided = self._service.decide(request, identity)
        _fill(response, decided)
        self._note(request, decided, started_s)

    def enrich_item(
        self,
        item: service_pb2.EnrichItem,
        result: service_pb2.EnrichResult,
        stream: int,
        worker_id: str,
        engines: EngineRegistry,
    ) -> None:
        """Fills in the result of a stream's item; raises as `enrich` does.

        Args:
            item: as it came.
            result: empty; stays so where this raises.
            stream: the stream's number.
            worker_id: the worker that the stream names.
            engines: those that the request may refer to.
        """
        started_s = time.perf_counter()
        request, identity = decode_request(item.request, engines, worker_id)
        applied = decode_applied(item, request.engine.dp_size)
        decided = self._service.decide(request, identity, (stream, item.seq), applied)
        if decided.unchanged:
            result.unchanged.SetInParent()
        else:
            _fill(result.response, decided)
        self._note(request, decided, started_s)

    def _note(self, request: Request, decided: Decided, started_s: float) -> None:
        took_s = time.perf_counter() - started_s
        self._store.observe(metrics.DECISION_SECONDS, took_s)
        if self._tracer is not None:
            now_ns = time.time_ns()
            started_ns = now_ns - int(took_s * 1e9)
            self._tracer.trace(request, decided.decision, decided.decision_id, started_ns, now_ns)

    def explain(self, message: service_pb2.EnrichRequest) -> Explanation:
        """Returns what `enrich` would respond now, and changes nothing; raises as it does."""
        return self._service.explain(*decode_request(message))


def _fill(response: service_pb2.EnrichResponse, decided: Decided) -> None:
    if decided.serialized:
        response.MergeFromString(decided.serialized)
    else:
        response.CopyFrom(encode_decision(decided.decision))
    response.decision_id = decided.decision_id
