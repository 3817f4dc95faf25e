"""Decoded requests for measurements of the decision alone."""

from __future__ import annotations

from routing_hints.v1 import service_pb2
from sidecar.model import Request
from sidecar.wire.request_codec import decode_request


def decode_whole_request(message: service_pb2.EnrichRequest) -> Request:
    """Returns a request with its identity, which the sidecar itself decodes only if no decision is cached."""
    request, identity = decode_request(message)
    return request._replace(identity=identity.read())
