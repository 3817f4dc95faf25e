"""Every documented limit of a request, an engine profile, a hello and a finish report."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.field_limit import HELLO_LIMITS, FieldError, check_strings
from sidecar.wire.request_codec import decode_finish, decode_request

_BIG = 16_384
_MAX_IDENTITY_BYTES = 65_536


def _request(**fields: Any) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(**{"phase": types_pb2.PHASE_PREFILL, **fields})


def _identity(**fields: Any) -> dict[str, Any]:
    return {"identity": types_pb2.Identity(**fields)}


def _context(**fields: Any) -> dict[str, Any]:
    return _identity(agent_context=types_pb2.AgentContext(**fields))


def _control(**fields: Any) -> dict[str, Any]:
    return _identity(session_control=types_pb2.SessionControl(**fields))


def _engine(**fields: Any) -> dict[str, Any]:
    return {"engine": types_pb2.EngineProfile(**fields)}


def _many(count: int) -> dict[str, str]:
    return {str(number): "v" for number in range(count)}


def _fill_identity(total_bytes: int) -> dict[str, Any]:
    """An identity of that size, no value of which is over its own limit."""
    identity = types_pb2.Identity(headers=dict.fromkeys(("a", "b", "c"), "x" * _BIG), annotations=[""])
    # The length of a long annotation takes one byte more than that of an empty one.
    identity.annotations[0] = "x" * (total_bytes - identity.ByteSize() - 1)
    assert identity.ByteSize() == total_bytes
    return {"identity": identity}


# The path in the error, the largest value that is allowed, and the smallest that is not.
_LIMITS = [
    ("request_id", {"request_id": "x" * 256}, {"request_id": "x" * 257}),
    ("request_id", {"request_id": "é" * 128}, {"request_id": "é" * 129}),
    ("worker_id", {"worker_id": "x" * 256}, {"worker_id": "x" * 257}),
    (
        "engine_instance",
        {"engine_instance": "x" * 256, **_engine()},
        {"engine_instance": "x" * 257, **_engine()},
    ),
    ("model", {"model": "x" * 1024}, {"model": "x" * 1025}),
    ("tenant", {"tenant": "x" * _BIG}, {"tenant": "x" * (_BIG + 1)}),
    ("traceparent", {"traceparent": "x" * 256}, {"traceparent": "x" * 257}),
    ("identity", _fill_identity(_MAX_IDENTITY_BYTES), _fill_identity(_MAX_IDENTITY_BYTES + 1)),
    (
        "identity.conversation_id",
        _identity(conversation_id="x" * _BIG),
        _identity(conversation_id="x" * (_BIG + 1)),
    ),
    *(
        (
            f"identity.agent_context.{name}",
            _context(**{name: "x" * _BIG}),
            _context(**{name: "x" * (_BIG + 1)}),
        )
        for name in ("session_id", "parent_session_id", "trajectory_id", "parent_trajectory_id")
    ),
    (
        "identity.session_control.session_id",
        _control(session_id="x" * _BIG),
        _control(session_id="x" * (_BIG + 1)),
    ),
    ("identity.session_control.action", _control(action="x" * 256), _control(action="x" * 257)),
    *(
        (f"identity.{name}", _identity(**{name: _many(256)}), _identity(**{name: _many(257)}))
        for name in ("headers", "metadata", "body")
    ),
    *(
        (f"identity.{name}", _identity(**{name: {"k" * 256: "v"}}), _identity(**{name: {"k" * 257: "v"}}))
        for name in ("headers", "metadata", "body")
    ),
    *(
        (
            f"identity.{name}",
            _identity(**{name: {"k": "v" * _BIG}}),
            _identity(**{name: {"k": "v" * (_BIG + 1)}}),
        )
        for name in ("headers", "metadata", "body")
    ),
    ("identity.annotations", _identity(annotations=["a"] * 256), _identity(annotations=["a"] * 257)),
    ("identity.annotations", _identity(annotations=["a" * _BIG]), _identity(annotations=["a" * (_BIG + 1)])),
    ("engine.instance_id", _engine(instance_id="x" * 256), _engine(instance_id="x" * 257)),
    ("engine.version", _engine(version="x" * 256), _engine(version="x" * 257)),
    ("engine.dp_size", _engine(dp_size=65_536), _engine(dp_size=65_537)),
    (
        "hints.dp_rank",
        {"hints": types_pb2.RoutingHints(dp_rank=3), **_engine(dp_size=4)},
        {"hints": types_pb2.RoutingHints(dp_rank=4), **_engine(dp_size=4)},
    ),
    ("known_rank", {"known_rank": 3, **_engine(dp_size=4)}, {"known_rank": 4, **_engine(dp_size=4)}),
]


@pytest.mark.parametrize(("path", "allowed", "refused"), _LIMITS, ids=[limit[0] for limit in _LIMITS])
def test_request_field_has_the_limit_of_the_contract(
    path: str, allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    """The largest value passes; one more is refused, with the field's path and without the value."""
    decode_request(_request(**allowed))
    with pytest.raises(FieldError) as caught:
        decode_request(_request(**refused))
    assert caught.value.field == path
    assert str(caught.value).startswith(f"{path}: ")
    assert "xx" not in str(caught.value)


def test_request_without_a_phase_is_refused_for_that_whatever_else_is_wrong() -> None:
    for fields in ({}, {"request_id": "r" * 257}):
        with pytest.raises(FieldError, match=r"^phase: must be set$"):
            decode_request(service_pb2.EnrichRequest(**fields))


@pytest.mark.parametrize("rank", [0, 2**32 - 1])
def test_rank_is_not_checked_where_the_dp_size_is_unknown(rank: int) -> None:
    request, _ = decode_request(_request(hints=types_pb2.RoutingHints(dp_rank=rank), known_rank=rank))
    assert (request.router_rank, request.known_rank) == (rank, rank)


@pytest.mark.parametrize("name", ["hints", "known_rank"])
def test_rank_is_checked_against_the_registered_engine(name: str) -> None:
    engines = EngineRegistry()
    engines.register(types_pb2.EngineProfile(instance_id="e", dp_size=4))

    def decode(rank: int) -> None:
        value: Any = types_pb2.RoutingHints(dp_rank=rank) if name == "hints" else rank
        decode_request(_request(engine_instance="e", **{name: value}), engines)

    decode(3)
    with pytest.raises(FieldError) as caught:
        decode(4)
    assert caught.value.field == {"hints": "hints.dp_rank"}.get(name, name)


@pytest.mark.parametrize(
    ("path", "profile"),
    [
        ("engines.instance_id", types_pb2.EngineProfile(instance_id="x" * 257)),
        ("engines.version", types_pb2.EngineProfile(version="x" * 257)),
        ("engines.dp_size", types_pb2.EngineProfile(dp_size=65_537)),
    ],
)
def test_registered_engine_has_the_limits_of_the_contract(
    path: str, profile: types_pb2.EngineProfile
) -> None:
    with pytest.raises(FieldError) as caught:
        EngineRegistry().register(profile)
    assert caught.value.field == path


@pytest.mark.parametrize("name", ["worker_id", "client_version"])
def test_hello_has_the_limits_of_the_contract(name: str) -> None:
    check_strings(service_pb2.StreamHello(**{name: "x" * 256}), HELLO_LIMITS, "hello.")
    with pytest.raises(FieldError) as caught:
        check_strings(service_pb2.StreamHello(**{name: "x" * 257}), HELLO_LIMITS, "hello.")
    assert caught.value.field == f"hello.{name}"


@pytest.mark.parametrize("name", ["request_id", "decision_id", "local_reason"])
def test_finish_report_has_the_limits_of_the_contract(name: str) -> None:
    decode_finish(service_pb2.Finish(**{name: "x" * 256}))
    with pytest.raises(FieldError) as caught:
        decode_finish(service_pb2.Finish(**{name: "x" * 257}))
    assert caught.value.field == f"finishes.{name}"
