"""Captured requests as bytes on the wire, and how to spoil them."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from routing_hints.v1 import service_pb2
from tests.support.captures import CapturedContext, asked_phase, list_captures, load_capture
from worker_client import EngineProfile, Phase, codec
from worker_client._model import ClientPolicy
from worker_client._request import read_request
from worker_client._selected_carriers import pick_carriers

ENGINE = EngineProfile(instance_id="engine-1", dp_size=4)
MAX_SPOILS = 6


@cache
def list_questions() -> tuple[service_pb2.EnrichRequest, ...]:
    """What the client would ask about each captured request, with all of its headers."""
    questions = []
    for name in sorted(list_captures()):
        capture = load_capture(name)
        facts = read_request(
            capture["worker_request"],
            CapturedContext(capture),
            phase=Phase[asked_phase(capture).upper()],
            headers=capture["http_request"]["headers"],
        )
        question = service_pb2.EnrichRequest()
        codec.fill_request(
            question,
            facts,
            pick_carriers(facts, ClientPolicy(headers=tuple(facts.headers), annotations=("",))),
            engine_pb=codec.encode_engine(ENGINE),
            router_rank=facts.router_rank,
            known_rank=None,
        )
        questions.append(question)
    return tuple(questions)


@st.composite
def spoiled(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of a message with some of them changed, cut out, doubled or put in."""
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(0, MAX_SPOILS))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 24)))
        data[at:until] = draw(
            st.one_of(st.binary(max_size=8), st.just(bytes(data[at:until]) * 2), st.just(bytes(until - at)))
        )
    return bytes(data)
