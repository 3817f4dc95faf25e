"""The requests and responses of a workload in bytes, so that every peer moves as many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.decoding import decode_whole_request
from bench.workload import ENGINE, EngineRequest
from routing_hints.v1 import service_pb2
from sidecar.decision.decide import decide
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.wire.response_codec import encode_client_policy, encode_decision
from worker_client import _codec
from worker_client._request import read_request

DECISION_ID = "0a1b2c3d-fffff"
"""As long as the sidecar's own are after a million decisions."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and the size of its response.

    Attributes:
        request: as a stream carries it, which has the engine already.
        standalone: the same request with its engine.
    """

    request: service_pb2.EnrichRequest
    standalone: service_pb2.EnrichRequest
    response_bytes: int

    @property
    def request_bytes(self) -> int:
        """The size of the request."""
        return self.request.ByteSize()


def encode_exchanges(requests: Iterable[EngineRequest]) -> list[Exchange]:
    """Returns what the real codecs of both sides make of these requests."""
    compiled = compile_policy(Policy())
    policy = _codec.decode_policy(encode_client_policy(compiled.view))
    exchanges = []
    for engine_request in requests:
        facts = read_request(
            engine_request.request,
            engine_request.context,
            phase=engine_request.phase,
            headers=engine_request.headers,
        )
        standalone = _codec.encode_request(facts, policy, ENGINE)
        request = service_pb2.EnrichRequest()
        request.CopyFrom(standalone)
        request.ClearField("engine")
        request.engine_instance = ENGINE.instance_id
        response = encode_decision(decide(decode_whole_request(standalone), compiled))
        response.decision_id = DECISION_ID
        exchanges.append(Exchange(request, standalone, response.ByteSize()))
    return exchanges
