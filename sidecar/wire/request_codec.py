"""From the contract's requests and finish reports to the decision's values; checks every documented limit.

A message beyond a limit raises `FieldError`.
"""

from __future__ import annotations

from typing import NamedTuple

from routing_hints.limits import MAX_ID_BYTES
from routing_hints.v1 import service_pb2
from routing_hints.vocabulary import Phase, RankDirective, RequestKind
from sidecar.model import Applied, FinishReport, Request
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.enum_codec import EnumDecoder
from sidecar.wire.field_limit import (
    FINISH_LIMITS,
    SHORT_BYTES,
    FieldError,
    check_rank,
    check_request,
    check_size,
    check_strings,
)
from sidecar.wire.identity_codec import WireIdentity

_PHASE = EnumDecoder(Phase)
_KIND = EnumDecoder(RequestKind)
_DIRECTIVE = EnumDecoder(RankDirective)
NO_ENGINES = EngineRegistry(max_engines=0)


class DecodedRequest(NamedTuple):
    """One request of a worker."""

    request: Request
    """Without its identity."""
    identity: WireIdentity


def decode_request(
    message: service_pb2.EnrichRequest, engines: EngineRegistry = NO_ENGINES, worker_id: str = ""
) -> DecodedRequest:
    """Returns what the decision reads of a request.

    Args:
        message: as it came.
        engines: those that it may refer to.
        worker_id: the worker that its stream names; counts where the request names none.

    Raises:
        FieldError: a field breaks its documented range.
    """
    if not message.phase:
        raise FieldError("phase", "must be set")
    if message.ByteSize() > SHORT_BYTES:
        check_request(message)
    unknown: list[str] = []
    phase = _PHASE.decode(message.phase, "phase", unknown)
    kind = _KIND.decode(message.kind, "kind", unknown)
    engine, engine_unknown = engines.find(message)
    router_rank = known_rank = None
    if message.HasField("hints") and message.hints.HasField("dp_rank"):
        router_rank = message.hints.dp_rank
        check_rank(router_rank, engine.dp_size, "hints.dp_rank")
    if message.HasField("known_rank"):
        known_rank = message.known_rank
        check_rank(known_rank, engine.dp_size, "known_rank")
    request = Request(
        phase,
        request_id=message.request_id,
        worker_id=message.worker_id or worker_id,
        kind=kind,
        router_rank=router_rank,
        engine=engine,
        tenant=message.tenant,
        unknown_enums=(*unknown, *engine_unknown),
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        traceparent=message.traceparent,
        known_rank=known_rank,
    )
    return DecodedRequest(request, WireIdentity(message.identity))


def decode_applied(message: service_pb2.EnrichItem, dp_size: int) -> Applied | None:
    """Returns what the client did with an item already; None if it waits for the response.

    Raises:
        FieldError: a field breaks its documented range.
    """
    if not message.HasField("applied"):
        return None
    applied = message.applied
    check_size(applied.decision_id, MAX_ID_BYTES, "applied.decision_id")
    rank = applied.dp_rank if applied.HasField("dp_rank") else None
    if rank is not None:
        check_rank(rank, dp_size, "applied.dp_rank")
    return Applied(_DIRECTIVE.decode(applied.directive, "applied.directive", []), rank, applied.decision_id)


def decode_finish(message: service_pb2.Finish) -> FinishReport:
    """Returns how a request ended.

    Raises:
        FieldError: a field breaks its documented range.
    """
    if message.ByteSize() > SHORT_BYTES:
        check_strings(message, FINISH_LIMITS, "finishes.")
    return FinishReport(
        seq=message.seq,
        request_id=message.request_id,
        phase=message.phase,
        decision_id=message.decision_id,
        outcome=message.outcome,
        applied_directive=message.applied_directive,
        id_attached=message.id_attached,
        local_reason=message.local_reason,
        observed_dp_rank=message.observed_dp_rank if message.HasField("observed_dp_rank") else None,
        cached_tokens=message.cached_tokens if message.HasField("cached_tokens") else None,
        applied_dp_rank=message.applied_dp_rank if message.HasField("applied_dp_rank") else None,
        reused=message.reused,
    )
