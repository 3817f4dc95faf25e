"""RoutingHintsService: what a worker asks on the request path."""

from __future__ import annotations

import grpc

from routing_hints.v1 import service_pb2
from sidecar.answer_codec import encode_explanation
from sidecar.decider import Decider
from sidecar.enrich import explain
from sidecar.policy_file import PolicyHolder
from sidecar.request_codec import decode_query
from sidecar.rpc import Edge
from sidecar.stream import StreamServicer

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"].full_name


class RoutingHintsServicer:
    """Serves Enrich, EnrichStream and Explain."""

    def __init__(self, decider: Decider, streams: StreamServicer, holder: PolicyHolder) -> None:
        self._decider = decider
        self._streams = streams
        self._holder = holder

    def enrich(self, request: service_pb2.EnrichRequest) -> service_pb2.EnrichResponse:
        """Decides about one request; raises FieldError where a field breaks its range."""
        return self._decider.decide(request)

    def explain(self, request: service_pb2.ExplainRequest) -> service_pb2.ExplainResponse:
        """Shows the decision that `enrich` would take; fails as it does."""
        query = decode_query(request.request)
        return encode_explanation(explain(query, self._holder.current.compiled))

    def make_handler(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Returns the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Enrich": edge.serve_unary(service_pb2.EnrichRequest, self.enrich),
                "EnrichStream": edge.serve_stream(self._streams.converse),
                "Explain": edge.serve_unary(service_pb2.ExplainRequest, self.explain),
            },
        )
