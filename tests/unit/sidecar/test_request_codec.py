"""From message to query: what is taken over, and every documented limit."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from sidecar import model
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import Caller, decode_finish, decode_hello, decode_query

_BIG = 16_384


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


# The path in the error, the largest value that is allowed, and the smallest that is not.
_LIMITS = [
    ("request_id", {"request_id": "x" * 256}, {"request_id": "x" * 257}),
    ("request_id", {"request_id": "é" * 128}, {"request_id": "é" * 129}),
    ("worker_id", {"worker_id": "x" * 256}, {"worker_id": "x" * 257}),
    ("model", {"model": "x" * 1024}, {"model": "x" * 1025}),
    ("tenant", {"tenant": "x" * _BIG}, {"tenant": "x" * (_BIG + 1)}),
    ("traceparent", {"traceparent": "x" * 256}, {"traceparent": "x" * 257}),
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
    ("identity.session_control.action", _control(action="x" * 64), _control(action="x" * 65)),
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
def test_each_limit_is_where_the_contract_says(
    path: str, allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    """The largest value passes; one more is refused, with the field's path and without the value."""
    decode_query(_request(**allowed))
    with pytest.raises(FieldError) as caught:
        decode_query(_request(**refused))
    assert caught.value.field == path
    assert str(caught.value).startswith(f"{path}: ")
    assert "xx" not in str(caught.value)


def test_a_phase_is_needed() -> None:
    """A request without a phase is refused."""
    with pytest.raises(FieldError, match=r"^phase: must be set$"):
        decode_query(service_pb2.EnrichRequest())


@pytest.mark.parametrize("rank", [0, 2**32 - 1])
def test_a_rank_beside_an_unknown_size_is_not_checked(rank: int) -> None:
    """Without dp_size nobody knows which ranks there are."""
    query = decode_query(_request(hints=types_pb2.RoutingHints(dp_rank=rank), known_rank=rank))
    assert query.router_rank == rank


def test_the_prefill_rank_is_not_checked() -> None:
    """It is informational, and stale in many requests."""
    hints = types_pb2.RoutingHints(prefill_dp_rank=99)
    assert decode_query(_request(hints=hints, **_engine(dp_size=4))).router_rank is None


def test_rank_zero_is_a_rank() -> None:
    """Absence and zero differ."""
    assert decode_query(_request(hints=types_pb2.RoutingHints(dp_rank=0))).router_rank == 0
    assert decode_query(_request(hints=types_pb2.RoutingHints())).router_rank is None


def test_every_field_is_taken_over() -> None:
    """The query says what the message says."""
    message = _request(
        request_id="r",
        worker_id="w",
        kind=types_pb2.REQUEST_KIND_WARMUP,
        tenant="t",
        hints=types_pb2.RoutingHints(dp_rank=1),
        identity=types_pb2.Identity(
            conversation_id="c",
            agent_context=types_pb2.AgentContext(
                session_id="s",
                parent_session_id="p",
                session_final=True,
                trajectory_id="j",
                parent_trajectory_id="q",
            ),
            session_control=types_pb2.SessionControl(session_id="k", action="close", timeout=2**64 - 1),
            headers={"X-Session-Id": "h"},
            metadata={"conversation-id": "m"},
            annotations=["a:1", "b"],
            body={"metadata.user_id": "u"},
        ),
        engine=types_pb2.EngineProfile(
            dialect=types_pb2.ENGINE_DIALECT_DISAGGREGATED_PARAMS,
            adp_router=types_pb2.ADP_ROUTER_KV_CACHE_AWARE,
            rank_source=types_pb2.RANK_SOURCE_ROUTER,
            records_first_rank=True,
            dp_size=8,
            subagent_affinity=True,
            wants_conversation_id=True,
            max_active_requests=64,
        ),
    )
    assert decode_query(message) == model.Query(
        phase=model.Phase.PREFILL,
        request_id="r",
        worker_id="w",
        kind=model.RequestKind.WARMUP,
        tenant="t",
        router_rank=1,
        identity=model.Identity(
            conversation_id="c",
            agent_context=model.AgentContext("s", "p", True, "j", "q"),
            session_control=model.SessionControl("k", "close", 2**64 - 1),
            headers={"X-Session-Id": "h"},
            metadata={"conversation-id": "m"},
            annotations=("a:1", "b"),
            body={"metadata.user_id": "u"},
        ),
        engine=model.Engine(
            dialect=model.EngineDialect.DISAGGREGATED_PARAMS,
            adp_router=model.AdpRouter.KV_CACHE_AWARE,
            rank_source=model.RankSource.ROUTER,
            records_first_rank=True,
            dp_size=8,
            subagent_affinity=True,
            wants_conversation_id=True,
            max_active_requests=64,
        ),
    )


def _with_enum(path: str, number: int) -> service_pb2.EnrichRequest:
    request = _request()
    target: Any = request.engine if path.startswith("engine.") else request
    setattr(target, path.rpartition(".")[2], number)
    return request


@pytest.mark.parametrize("number", [99, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    "path", ["phase", "kind", "engine.dialect", "engine.adp_router", "engine.rank_source"]
)
def test_unknown_enums_are_reported_by_path(path: str, number: int) -> None:
    """A number that no enum has is no error."""
    assert decode_query(_with_enum(path, number)).unknown_enums == (path,)


def test_an_item_without_a_profile_has_the_hellos() -> None:
    """Worker and engine of the hello stand in, its unknown values and its dp_size included."""
    hello = service_pb2.StreamHello(worker_id="w", engine=types_pb2.EngineProfile(dp_size=4))
    setattr(hello.engine, "dialect", 99)  # noqa: B010, the stubs know no such value
    caller = decode_hello(hello)
    query = decode_query(_request(), caller)
    assert (query.worker_id, query.engine.dp_size) == ("w", 4)
    assert query.unknown_enums == ("hello.engine.dialect",)
    with pytest.raises(FieldError, match=r"^hints\.dp_rank: "):
        decode_query(_request(hints=types_pb2.RoutingHints(dp_rank=4)), caller)


def test_an_items_own_profile_wins() -> None:
    """What an item says replaces the hello."""
    caller = Caller("w", model.Engine(dp_size=4), ("hello.engine.dialect",))
    query = decode_query(_request(worker_id="v", **_engine(dp_size=8)), caller)
    assert (query.worker_id, query.engine.dp_size, query.unknown_enums) == ("v", 8, ())


@pytest.mark.parametrize(
    ("path", "hello"),
    [
        ("hello.worker_id", service_pb2.StreamHello(worker_id="x" * 257)),
        ("hello.client_version", service_pb2.StreamHello(client_version="x" * 257)),
        ("hello.engine.dp_size", service_pb2.StreamHello(engine=types_pb2.EngineProfile(dp_size=65_537))),
        ("hello.engine.version", service_pb2.StreamHello(engine=types_pb2.EngineProfile(version="x" * 257))),
    ],
)
def test_a_hello_has_limits(path: str, hello: service_pb2.StreamHello) -> None:
    """The path begins with `hello`."""
    with pytest.raises(FieldError) as caught:
        decode_hello(hello)
    assert caught.value.field == path


@pytest.mark.parametrize("name", ["request_id", "decision_id", "local_reason"])
def test_a_finish_has_limits(name: str) -> None:
    """A report that could fill memory is refused."""
    with pytest.raises(FieldError, match=f"^finishes.{name}: "):
        decode_finish(service_pb2.Finish(**{name: "x" * 257}))
