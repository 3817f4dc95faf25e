"""A span for each decision, joined to the trace of its request.

OpenTelemetry is imported only where its own variables ask for it. `gen_ai.conversation.id` and
`gen_ai.request.model` are attributes of its semantic conventions; the id is the conversation's hash, since
the raw one is personal data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from sidecar.model import Decision, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SPAN_NAME = "routing_hints.decide"
SERVICE_NAME = "routing-hint-sidecar"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class DecisionTracer:
    """Makes the spans.

    Args:
        provider: exports what it makes; it also holds the sampler, which by default follows the caller.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE_NAME)
        self._propagator = TraceContextTextMapPropagator()

    def trace(
        self, request: Request, decision: Decision, decision_id: str, started_at_ns: int, ended_at_ns: int
    ) -> None:
        """Makes the span of one decision; times are nanoseconds since the epoch."""
        parent = self._propagator.extract({"traceparent": request.traceparent})
        span = self._tracer.start_span(SPAN_NAME, parent, start_time=started_at_ns)
        if span.is_recording():
            attributes: dict[str, str | bool | Sequence[str]] = {
                "gen_ai.conversation.id": decision.conversation_hash,
                "gen_ai.request.model": request.model,
                "routing_hints.decision": decision.placement.name.lower(),
                "routing_hints.decision_id": decision_id,
                "routing_hints.directive": decision.directive.name.lower(),
                "routing_hints.id_attached": decision.conversation_id is not None,
                "routing_hints.notices": decision.notices,
                "routing_hints.phase": request.phase.name.lower(),
                "routing_hints.policy_revision": decision.policy_revision,
                "routing_hints.request_id": request.request_id,
                "routing_hints.source": decision.source_detail or "none",
            }
            span.set_attributes({name: value for name, value in attributes.items() if value != ""})
        span.end(ended_at_ns)

    def close(self) -> None:
        """Exports what is left, and stops."""
        self._provider.shutdown()


def make_tracer(environment: Mapping[str, str]) -> DecisionTracer | None:
    """Returns a tracer if the environment names an OTLP endpoint, else None.

    Where OpenTelemetry is not installed, one warning reports it and the sidecar serves without spans.
    """
    is_named = any(environment.get(name, "").strip() for name in _ENDPOINTS)
    is_refused = (
        environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    )
    if not is_named or is_refused:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        structlog.get_logger("sidecar").warning(
            "tracing_unavailable", missing=error.name, change="install routing-hint-sidecar[otel]"
        )
        return None
    resource = Resource.create({} if environment.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE_NAME})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return DecisionTracer(provider)
