"""From the contract's messages to the decision's values; checks every documented limit.

A message beyond a limit raises `FieldError`. Nothing here puts a value of a request into an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import Message

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.model import (
    NO_IDENTITY,
    UNKNOWN_ENGINE,
    AdpRouter,
    AgentContext,
    Engine,
    EngineDialect,
    FinishReport,
    Identity,
    Phase,
    Query,
    RankSource,
    RequestKind,
    SessionControl,
)

MAX_ID_BYTES = 256
MAX_VALUE_BYTES = 16_384
MAX_ENTRIES = 256
MAX_DP_SIZE = 65_536
# No string or map of a message up to this size breaks a limit, and most messages are that short.
_SHORT_BYTES = MAX_ID_BYTES
_MAX_CACHED_BYTES = 1_024

_REQUEST_LIMITS = (
    ("request_id", MAX_ID_BYTES),
    ("worker_id", MAX_ID_BYTES),
    ("model", 1_024),
    ("tenant", MAX_VALUE_BYTES),
    ("traceparent", MAX_ID_BYTES),
)
_AGENT_CONTEXT_LIMITS = tuple(
    (name, MAX_VALUE_BYTES)
    for name in ("session_id", "parent_session_id", "trajectory_id", "parent_trajectory_id")
)
_SESSION_CONTROL_LIMITS = (("session_id", MAX_VALUE_BYTES),)
_ACTION_BYTES = 64
_ENGINE_LIMITS = (("instance_id", MAX_ID_BYTES), ("version", MAX_ID_BYTES))
_FINISH_LIMITS = (
    ("request_id", MAX_ID_BYTES),
    ("decision_id", MAX_ID_BYTES),
    ("local_reason", MAX_ID_BYTES),
)
_HELLO_LIMITS = (("worker_id", MAX_ID_BYTES), ("client_version", MAX_ID_BYTES))

_PHASES = {phase.value: phase for phase in Phase}
_KINDS = {kind.value: kind for kind in RequestKind}
_DIALECTS = {dialect.value: dialect for dialect in EngineDialect}
_ROUTERS = {router.value: router for router in AdpRouter}
_RANK_SOURCES = {source.value: source for source in RankSource}

_EnumT = TypeVar("_EnumT", bound=IntEnum)


class FieldError(ValueError):
    """A field breaks its documented range.

    Attributes:
        field: the field's path, such as `hints.dp_rank`.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Caller:
    """What a stream's hello said; stands in for what its items leave out."""

    worker_id: str = ""
    engine: Engine = UNKNOWN_ENGINE
    unknown_enums: tuple[str, ...] = ()


UNKNOWN_CALLER = Caller()


def decode_query(message: service_pb2.EnrichRequest, caller: Caller = UNKNOWN_CALLER) -> Query:
    """Returns what the decision reads of a request.

    Raises:
        FieldError: a field breaks its documented range.
    """
    if not message.phase:
        raise FieldError("phase", "must be set")
    if message.ByteSize() > _SHORT_BYTES:
        _check_lengths(message)
    unknown: list[str] = []
    phase = _decode_enum(_PHASES, message.phase, "phase", Phase.UNSPECIFIED, unknown)
    kind = _decode_enum(_KINDS, message.kind, "kind", RequestKind.UNSPECIFIED, unknown)
    if message.HasField("engine"):
        engine, engine_unknown = _read_engine(message.engine, "engine.")
        unknown.extend(engine_unknown)
    else:
        engine = caller.engine
        unknown.extend(caller.unknown_enums)
    router_rank = None
    if message.HasField("hints") and message.hints.HasField("dp_rank"):
        router_rank = message.hints.dp_rank
        _check_rank(router_rank, engine.dp_size, "hints.dp_rank")
    known_rank = None
    if message.HasField("known_rank"):
        known_rank = message.known_rank
        _check_rank(known_rank, engine.dp_size, "known_rank")
    return Query(
        phase,
        message.request_id,
        message.worker_id or caller.worker_id,
        kind,
        _decode_identity(message.identity) if message.HasField("identity") else NO_IDENTITY,
        router_rank,
        engine,
        message.tenant,
        tuple(unknown),
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        traceparent=message.traceparent,
        known_rank=known_rank,
    )


def decode_hello(message: service_pb2.StreamHello) -> Caller:
    """Returns who opened a stream.

    Raises:
        FieldError: a field breaks its documented range.
    """
    _check_strings(message, _HELLO_LIMITS, "hello.")
    if not message.HasField("engine"):
        return Caller(message.worker_id)
    engine, unknown = _read_engine(message.engine, "hello.engine.")
    return Caller(message.worker_id, engine, unknown)


def decode_finish(message: service_pb2.Finish) -> FinishReport:
    """Returns how a request ended.

    Raises:
        FieldError: a field breaks its documented range, or is longer than an id or a token can be.
    """
    _check_strings(message, _FINISH_LIMITS, "finishes.")
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
    _check_strings(message, _ENGINE_LIMITS, path)
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


def _decode_identity(message: types_pb2.Identity) -> Identity:
    agent_context = session_control = None
    if message.HasField("agent_context"):
        context = message.agent_context
        agent_context = AgentContext(
            context.session_id,
            context.parent_session_id,
            context.session_final,
            context.trajectory_id,
            context.parent_trajectory_id,
        )
    if message.HasField("session_control"):
        control = message.session_control
        _check_size(control.action, _ACTION_BYTES, "identity.session_control.action")
        session_control = SessionControl(control.session_id, control.action, control.timeout)
    return Identity(
        message.conversation_id,
        agent_context,
        session_control,
        dict(message.headers.items()),
        dict(message.metadata.items()),
        tuple(message.annotations),
        dict(message.body.items()),
    )


def _check_lengths(message: service_pb2.EnrichRequest) -> None:
    _check_strings(message, _REQUEST_LIMITS)
    identity = message.identity
    _check_size(identity.conversation_id, MAX_VALUE_BYTES, "identity.conversation_id")
    _check_strings(identity.agent_context, _AGENT_CONTEXT_LIMITS, "identity.agent_context.")
    _check_strings(identity.session_control, _SESSION_CONTROL_LIMITS, "identity.session_control.")
    for path, entries in (
        ("identity.headers", identity.headers),
        ("identity.metadata", identity.metadata),
        ("identity.body", identity.body),
    ):
        _check_count(len(entries), path)
        for name, value in entries.items():
            _check_size(name, MAX_ID_BYTES, path)
            _check_size(value, MAX_VALUE_BYTES, path)
    _check_count(len(identity.annotations), "identity.annotations")
    for annotation in identity.annotations:
        _check_size(annotation, MAX_VALUE_BYTES, "identity.annotations")


def _decode_enum(
    known: Mapping[int, _EnumT], number: int, path: str, stand_in: _EnumT, unknown: list[str]
) -> _EnumT:
    value = known.get(number)
    if value is None:
        unknown.append(path)
        return stand_in
    return value


def _check_strings(message: Message, limits: Iterable[tuple[str, int]], path: str = "") -> None:
    for name, max_bytes in limits:
        value = getattr(message, name)
        if value:
            _check_size(value, max_bytes, path + name)


def _check_size(value: str, max_bytes: int, path: str) -> None:
    size = len(value)
    if size > max_bytes or (not value.isascii() and len(value.encode()) > max_bytes):
        raise FieldError(path, f"is longer than {max_bytes} bytes")


def _check_count(count: int, path: str) -> None:
    if count > MAX_ENTRIES:
        raise FieldError(path, f"has more than {MAX_ENTRIES} entries")


def _check_rank(rank: int, dp_size: int, path: str) -> None:
    if dp_size and rank >= dp_size:
        raise FieldError(path, "is not below the engine's dp_size")
