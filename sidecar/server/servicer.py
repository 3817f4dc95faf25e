"""RoutingHintsService: the request path."""

from __future__ import annotations

import grpc

from routing_hints.v1 import service_pb2
from sidecar.server.enrichment import Enricher
from sidecar.server.error_boundary import ErrorBoundary
from sidecar.server.stream import StreamServicer
from sidecar.wire.response_codec import encode_explanation

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"].full_name


class RoutingHintsServicer:
    """Serves Enrich, EnrichStream and Explain."""

    def __init__(self, enricher: Enricher, streams: StreamServicer) -> None:
        self._enricher = enricher
        self._streams = streams

    def enrich(self, request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
        """Decides about one request; raises FieldError where a field breaks its range."""
        response = service_pb2.EnrichResponse()
        self._enricher.enrich(request, response)
        return response

    def explain(self, request: service_pb2.ExplainRequest) -> service_pb2.ExplainResponse:
        """Returns the decision that `enrich` would take, and why; raises as it does."""
        return encode_explanation(self._enricher.explain(request.request))

    def make_handler(self, error_boundary: ErrorBoundary) -> grpc.GenericRpcHandler:
        """Returns the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Enrich": error_boundary.serve_unary(service_pb2.EnrichRequest, self.enrich),
                "EnrichStream": error_boundary.serve_stream(self._streams.converse),
                "Explain": error_boundary.serve_unary(service_pb2.ExplainRequest, self.explain),
            },
        )
