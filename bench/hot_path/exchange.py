"""The questions and answers of a workload as bytes, so that every peer moves as many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.workload import ENGINE, Leg
from routing_hints.v1 import service_pb2
from sidecar.decision.decide import decide
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.wire.request_codec import decode_query
from sidecar.wire.response_codec import encode_answer, encode_client_policy
from worker_client import codec
from worker_client._request import read_request
from worker_client._selected_carriers import pick_carriers

DECISION_ID = "0a1b2c3d-fffff"
"""As long as the sidecar's own are after a million decisions."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question, and the bytes of its answer."""

    question: service_pb2.EnrichRequest
    answer_bytes: int

    @property
    def question_bytes(self) -> int:
        """The size of the question."""
        return self.question.ByteSize()


def encode_exchanges(legs: Iterable[Leg]) -> list[Exchange]:
    """Returns what the real codecs of both sides make of these legs."""
    compiled = compile_policy(Policy())
    policy = codec.decode_policy(encode_client_policy(compiled.view))
    engine_pb = codec.encode_engine(ENGINE)
    exchanges = []
    for leg in legs:
        facts = read_request(leg.request, leg.context, phase=leg.phase, headers=leg.headers)
        question = service_pb2.EnrichRequest()
        codec.fill_request(
            question,
            facts,
            pick_carriers(facts, policy),
            engine_pb=engine_pb,
            router_rank=facts.router_rank,
            known_rank=None,
        )
        answer = encode_answer(decide(decode_query(question), compiled), DECISION_ID)
        exchanges.append(Exchange(question, answer.ByteSize()))
    return exchanges
