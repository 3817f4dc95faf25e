"""Captured requests as bytes on the wire, and how to spoil them."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from routing_hints.v1 import service_pb2
from tests.support.captures import CapturedContext, asked_phase, list_captures, load_capture
from worker_client import EngineProfile, Phase, _codec
from worker_client._model import ClientPolicy
from worker_client._request import read_request

ENGINE = EngineProfile(instance_id="engine-1", dp_size=4)
MAX_SPOILS = 6


@cache
def list_requests() -> tuple[service_pb2.EnrichRequest, ...]:
    """The request to the sidecar of each captured request, with all of its headers."""
    requests = []
    for name in sorted(list_captures()):
        capture = load_capture(name)
        facts = read_request(
            capture["worker_request"],
            CapturedContext(capture),
            phase=Phase[asked_phase(capture).upper()],
            headers=capture["http_request"]["headers"],
        )
        policy = ClientPolicy(headers=tuple(facts.headers), annotations=("",))
        requests.append(_codec.encode_request(facts, policy, ENGINE))
    return tuple(requests)


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
