"""From the contract's messages to the decision's values; checks every documented limit.

A message beyond a limit raises `FieldError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.model import (
    NO_IDENTITY,
    UNKNOWN_ENGINE,
    AdpRouter,
    Engine,
    EngineDialect,
    FinishReport,
    Phase,
    Query,
    RankSource,
    RequestKind,
)
from sidecar.wire.field_limit import (
    ENGINE_LIMITS,
    FINISH_LIMITS,
    HELLO_LIMITS,
    MAX_DP_SIZE,
    MAX_ID_BYTES,
    REQUEST_LIMITS,
    FieldError,
    check_rank,
    check_request,
    check_strings,
)
from sidecar.wire.identity_codec import decode_identity

# No string or map of a message up to this size breaks a limit, and most messages are that short.
_SHORT_BYTES = MAX_ID_BYTES
_MAX_CACHED_BYTES = 1_024

_PHASES = {phase.value: phase for phase in Phase}
_KINDS = {kind.value: kind for kind in RequestKind}
_DIALECTS = {dialect.value: dialect for dialect in EngineDialect}
_ROUTERS = {router.value: router for router in AdpRouter}
_RANK_SOURCES = {source.value: source for source in RankSource}

_EnumT = TypeVar("_EnumT", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Caller:
    """What a stream's hello said; stands in for what its items leave out."""

    worker_id: str = ""
    engine: Engine = UNKNOWN_ENGINE
    unknown_enums: tuple[str, ...] = ()


UNKNOWN_CALLER = Caller()


class Subject(NamedTuple):
    """What of a question its decision depends on, messages as bytes.

    The rest is one request's own: its id, its worker, its model, its length, its trace, and the ranks that
    its router chose and its client remembers.
    """

    phase: int
    kind: int
    tenant: str
    identity: bytes
    engine: bytes
    has_router_rank: bool


def decode_query(message: service_pb2.EnrichRequest, caller: Caller = UNKNOWN_CALLER) -> Query:
    """Returns what the decision reads of a request.

    Raises:
        FieldError: a field breaks its documented range.
    """
    if not message.phase:
        raise FieldError("phase", "must be set")
    if message.ByteSize() > _SHORT_BYTES:
        check_request(message)
    unknown: list[str] = []
    phase = _decode_enum(_PHASES, message.phase, "phase", Phase.UNSPECIFIED, unknown)
    kind = _decode_enum(_KINDS, message.kind, "kind", RequestKind.UNSPECIFIED, unknown)
    if message.HasField("engine"):
        engine, engine_unknown = _read_engine(message.engine, "engine.")
        unknown.extend(engine_unknown)
    else:
        engine = caller.engine
        unknown.extend(caller.unknown_enums)
    router_rank, known_rank = _read_ranks(message, engine)
    return Query(
        phase,
        message.request_id,
        message.worker_id or caller.worker_id,
        kind,
        decode_identity(message.identity) if message.HasField("identity") else NO_IDENTITY,
        router_rank,
        engine,
        message.tenant,
        tuple(unknown),
        message.model,
        message.prompt_tokens,
        message.traceparent,
        known_rank,
    )


def read_subject(message: service_pb2.EnrichRequest) -> Subject | None:
    """Returns what a question asks about; None if it is malformed, long, or leaves its engine to its caller.

    Raises:
        FieldError: a string of the request's own is too long.
    """
    size_bytes = message.ByteSize()
    if size_bytes > _MAX_CACHED_BYTES or not message.phase or not message.HasField("engine"):
        return None
    if size_bytes > _SHORT_BYTES:
        check_strings(message, REQUEST_LIMITS)
    return Subject(
        message.phase,
        message.kind,
        message.tenant,
        message.identity.SerializeToString(),
        message.engine.SerializeToString(),
        _has_router_rank(message),
    )


def decode_again(known: Query, message: service_pb2.EnrichRequest, caller: Caller = UNKNOWN_CALLER) -> Query:
    """Returns the query of a request with the subject of a known one, without identity and tenant.

    Raises:
        FieldError: a rank is none of the engine's.
    """
    router_rank, known_rank = _read_ranks(message, known.engine)
    return Query(
        known.phase,
        message.request_id,
        message.worker_id or caller.worker_id,
        known.kind,
        NO_IDENTITY,
        router_rank,
        known.engine,
        "",
        known.unknown_enums,
        message.model,
        message.prompt_tokens,
        message.traceparent,
        known_rank,
    )


def decode_hello(message: service_pb2.StreamHello) -> Caller:
    """Returns who opened a stream.

    Raises:
        FieldError: a field breaks its documented range.
    """
    check_strings(message, HELLO_LIMITS, "hello.")
    if not message.HasField("engine"):
        return Caller(message.worker_id)
    engine, unknown = _read_engine(message.engine, "hello.engine.")
    return Caller(message.worker_id, engine, unknown)


def decode_finish(message: service_pb2.Finish) -> FinishReport:
    """Returns how a request ended.

    Raises:
        FieldError: a field breaks its documented range, or is longer than an id or a token can be.
    """
    if message.ByteSize() > _SHORT_BYTES:
        check_strings(message, FINISH_LIMITS, "finishes.")
    return FinishReport(
        message.request_id,
        message.phase,
        message.decision_id,
        message.outcome,
        message.applied_directive,
        message.id_attached,
        message.local_reason,
        message.observed_dp_rank if message.HasField("observed_dp_rank") else None,
        message.cached_tokens if message.HasField("cached_tokens") else None,
        message.seq,
    )


def _has_router_rank(message: service_pb2.EnrichRequest) -> bool:
    return message.HasField("hints") and message.hints.HasField("dp_rank")


def _read_ranks(message: service_pb2.EnrichRequest, engine: Engine) -> tuple[int | None, int | None]:
    """Returns the rank that the router chose and the one that the client remembers."""
    router_rank = known_rank = None
    if _has_router_rank(message):
        router_rank = message.hints.dp_rank
        check_rank(router_rank, engine.dp_size, "hints.dp_rank")
    if message.HasField("known_rank"):
        known_rank = message.known_rank
        check_rank(known_rank, engine.dp_size, "known_rank")
    return router_rank, known_rank


def _read_engine(message: types_pb2.EngineProfile, path: str) -> tuple[Engine, tuple[str, ...]]:
    """Returns the engine, and the paths of its enum values that this sidecar does not know."""
    data = message.SerializeToString()
    decode = _decode_engine if len(data) <= _MAX_CACHED_BYTES else _decode_engine.__wrapped__
    return decode(data, path)


@lru_cache(maxsize=1_024)
def _decode_engine(data: bytes, path: str) -> tuple[Engine, tuple[str, ...]]:
    # A worker sends the same few bytes with each request.
    message = types_pb2.EngineProfile.FromString(data)
    unknown: list[str] = []
    check_strings(message, ENGINE_LIMITS, path)
    if message.dp_size > MAX_DP_SIZE:
        raise FieldError(f"{path}dp_size", f"is above {MAX_DP_SIZE}")
    none = RankSource.UNSPECIFIED
    engine = Engine(
        _decode_enum(_DIALECTS, message.dialect, f"{path}dialect", EngineDialect.UNSPECIFIED, unknown),
        _decode_enum(_ROUTERS, message.adp_router, f"{path}adp_router", AdpRouter.UNSPECIFIED, unknown),
        _decode_enum(_RANK_SOURCES, message.rank_source, f"{path}rank_source", none, unknown),
        message.records_first_rank,
        message.dp_size,
        message.subagent_affinity,
        message.wants_conversation_id,
        message.instance_id,
        message.max_active_requests,
    )
    return engine, tuple(unknown)


def _decode_enum(
    known: Mapping[int, _EnumT], number: int, path: str, stand_in: _EnumT, unknown: list[str]
) -> _EnumT:
    value = known.get(number)
    if value is None:
        unknown.append(path)
        return stand_in
    return value
