"""One request from its message to its response: decoded, decided, encoded, timed and traced."""

from __future__ import annotations

import time

from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from sidecar.decision.service import DecisionService, Item
from sidecar.model import Explanation
from sidecar.telemetry import metrics
from sidecar.telemetry.tracing import DecisionTracer
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.request_codec import NO_ENGINES, decode_request
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

    def enrich(
        self,
        message: service_pb2.EnrichRequest,
        response: service_pb2.EnrichResponse,
        engines: EngineRegistry = NO_ENGINES,
        worker_id: str = "",
        item: Item | None = None,
    ) -> None:
        """Fills in the response to a request.

        Args:
            message: as it came.
            response: empty; stays so where this raises.
            engines: those that the request may refer to.
            worker_id: the worker that its stream names.
            item: names it in its finish report; None if no report will follow.

        Raises:
            FieldError: a field breaks its documented range.
        """
        started_s = time.perf_counter()
        request, identity = decode_request(message, engines, worker_id)
        decision, decision_id, serialized = self._service.decide(request, identity, item)
        if serialized:
            response.MergeFromString(serialized)
        else:
            response.CopyFrom(encode_decision(decision))
        response.decision_id = decision_id
        took_s = time.perf_counter() - started_s
        self._store.observe(metrics.DECISION_SECONDS, took_s)
        if self._tracer is not None:
            now_ns = time.time_ns()
            self._tracer.trace(request, decision, decision_id, now_ns - int(took_s * 1e9), now_ns)

    def explain(self, message: service_pb2.EnrichRequest) -> Explanation:
        """Returns what `enrich` would respond now, and changes nothing; raises as it does."""
        return self._service.explain(*decode_request(message))
