"""From messages to the values that the decision reads."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints import vocabulary
from routing_hints.v1 import service_pb2, types_pb2
from sidecar import model
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.request_codec import decode_finish, decode_request


def _request(**fields: Any) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(**{"phase": types_pb2.PHASE_PREFILL, **fields})


def test_router_rank_zero_differs_from_none() -> None:
    zero, _ = decode_request(_request(hints=types_pb2.RoutingHints(dp_rank=0)))
    none, _ = decode_request(_request(hints=types_pb2.RoutingHints()))
    assert (zero.router_rank, none.router_rank) == (0, None)


def test_known_rank_zero_differs_from_none() -> None:
    zero, _ = decode_request(_request(known_rank=0))
    none, _ = decode_request(_request())
    assert (zero.known_rank, none.known_rank) == (0, None)


def test_request_has_every_field_of_its_message() -> None:
    message = _request(
        request_id="r",
        worker_id="w",
        kind=types_pb2.REQUEST_KIND_WARMUP,
        tenant="t",
        model="m",
        prompt_tokens=7,
        traceparent="00-1",
        known_rank=2,
        hints=types_pb2.RoutingHints(dp_rank=1),
        engine=types_pb2.EngineProfile(
            instance_id="i",
            dialect=types_pb2.ENGINE_DIALECT_DISAGGREGATED_PARAMS,
            adp_router=types_pb2.ADP_ROUTER_KV_CACHE_AWARE,
            rank_source=types_pb2.RANK_SOURCE_ROUTER,
            records_first_rank=True,
            dp_size=8,
            subagent_affinity=True,
            wants_conversation_id=True,
            max_active_requests=64,
            version="1.3.0",
        ),
    )
    request, _ = decode_request(message)
    assert request == model.Request(
        phase=vocabulary.Phase.PREFILL,
        request_id="r",
        worker_id="w",
        kind=vocabulary.RequestKind.WARMUP,
        tenant="t",
        model="m",
        prompt_tokens=7,
        traceparent="00-1",
        known_rank=2,
        router_rank=1,
        engine=model.Engine(
            instance_id="i",
            dialect=vocabulary.EngineDialect.DISAGGREGATED_PARAMS,
            adp_router=vocabulary.AdpRouter.KV_CACHE_AWARE,
            rank_source=vocabulary.RankSource.ROUTER,
            records_first_rank=True,
            dp_size=8,
            subagent_affinity=True,
            wants_conversation_id=True,
            max_active_requests=64,
        ),
    )


def test_identity_has_every_carrier_of_its_message() -> None:
    message = types_pb2.Identity(
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
    )
    _, identity = decode_request(_request(identity=message))
    assert identity.read() == model.Identity(
        conversation_id="c",
        agent_context=model.AgentContext("s", "p", True, "j", "q"),
        session_control=model.SessionControl("k", "close", 2**64 - 1),
        headers={"X-Session-Id": "h"},
        metadata={"conversation-id": "m"},
        annotations=("a:1", "b"),
        body={"metadata.user_id": "u"},
    )


def test_absent_identity_has_no_carriers() -> None:
    _, identity = decode_request(_request())
    assert identity.read() == model.NO_IDENTITY
    assert identity.key == b""


def test_identity_beyond_a_kibibyte_has_no_key() -> None:
    """Keys are kept, so a long one would take much memory."""
    longest = types_pb2.Identity(conversation_id="x" * 1_021)
    assert longest.ByteSize() == 1_024
    _, identity = decode_request(_request(identity=longest))
    assert identity.key is not None
    longest.conversation_id += "x"
    _, identity = decode_request(_request(identity=longest))
    assert identity.key is None


def test_finish_report_has_every_field_of_its_message() -> None:
    message = service_pb2.Finish(
        seq=7,
        request_id="r",
        phase=types_pb2.PHASE_DECODE,
        decision_id="d",
        outcome=service_pb2.FINISH_OUTCOME_CANCELLED,
        applied_directive=types_pb2.RANK_DIRECTIVE_WITHHOLD,
        id_attached=True,
        local_reason="sidecar-timed-out",
        observed_dp_rank=0,
        cached_tokens=0,
    )
    assert decode_finish(message) == model.FinishReport(
        seq=7,
        request_id="r",
        phase=2,
        decision_id="d",
        outcome=3,
        applied_directive=2,
        id_attached=True,
        local_reason="sidecar-timed-out",
        observed_dp_rank=0,
        cached_tokens=0,
    )


def test_observation_that_was_not_reported_differs_from_zero() -> None:
    report = decode_finish(service_pb2.Finish())
    assert (report.observed_dp_rank, report.cached_tokens) == (None, None)


def _with_enum(path: str, number: int) -> service_pb2.EnrichRequest:
    message = _request()
    target: Any = message.engine if path.startswith("engine.") else message
    setattr(target, path.rpartition(".")[2], number)
    return message


@pytest.mark.parametrize("number", [99, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    "path", ["phase", "kind", "engine.dialect", "engine.adp_router", "engine.rank_source"]
)
def test_unknown_enum_value_is_no_error_and_named_by_its_path(path: str, number: int) -> None:
    request, _ = decode_request(_with_enum(path, number))
    assert request.unknown_enums == (path,)


def test_unknown_enum_values_of_request_and_engine_are_named_together() -> None:
    message = _with_enum("engine.dialect", 99)
    setattr(message, "kind", 99)  # noqa: B010, the stubs know no such value
    request, _ = decode_request(message)
    assert request.unknown_enums == ("kind", "engine.dialect")


def test_unknown_enum_value_of_a_registered_engine_is_named_in_each_of_its_requests() -> None:
    profile = types_pb2.EngineProfile(instance_id="e")
    setattr(profile, "dialect", 99)  # noqa: B010, the stubs know no such value
    engines = EngineRegistry()
    engines.register(profile)
    for _ in range(2):
        request, _ = decode_request(_request(engine_instance="e"), engines)
        assert request.unknown_enums == ("engines.dialect",)


def test_worker_of_the_stream_is_taken_where_the_request_names_none() -> None:
    named, _ = decode_request(_request(worker_id="v"), worker_id="w")
    unnamed, _ = decode_request(_request(), worker_id="w")
    assert (named.worker_id, unnamed.worker_id) == ("v", "w")
