"""From the decision's values to the contract's messages."""

from __future__ import annotations

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.model import Applied, Decision, Explanation, FinishReport
from sidecar.policy.compiled import ClientView
from sidecar.wire.enum_codec import encode_enum


def encode_decision(decision: Decision) -> service_pb2.EnrichResponse:
    """Returns the decision as a message, without its id; `hints` is there only where an id or a rank is."""
    hints = None
    if decision.conversation_id is not None or decision.dp_rank is not None:
        hints = types_pb2.RoutingHints(
            conversation_id=decision.conversation_id,
            affinity_key=decision.affinity_key,
            dp_rank=decision.dp_rank,
        )
    return _encode_decision(decision, hints)


def encode_decision_without_ids(decision: Decision) -> service_pb2.EnrichResponse:
    """Returns the decision as a message that holds no id of a conversation."""
    hints = None if decision.dp_rank is None else types_pb2.RoutingHints(dp_rank=decision.dp_rank)
    return _encode_decision(decision, hints)


def _encode_decision(decision: Decision, hints: types_pb2.RoutingHints | None) -> service_pb2.EnrichResponse:
    return service_pb2.EnrichResponse(
        hints=hints,
        rank_directive=encode_enum(decision.directive),
        source=encode_enum(decision.source),
        source_detail=decision.source_detail,
        placement=encode_enum(decision.placement),
        conversation_hash=decision.conversation_hash,
        policy_revision=decision.policy_revision,
        identity_epoch=decision.identity_epoch,
        notices=decision.notices,
        reusable=decision.reusable,
    )


def serialize_decision(decision: Decision) -> bytes:
    """Returns the decision's message as bytes, in which a remembered decision is kept.

    Merging bytes into a response takes half the time of copying a message into it.
    """
    return encode_decision(decision).SerializeToString()


def encode_explanation(explanation: Explanation) -> service_pb2.ExplainResponse:
    """Returns the explanation as a message."""
    return service_pb2.ExplainResponse(
        decision=encode_decision(explanation.decision),
        carriers=[
            service_pb2.CarrierTrace(
                source=encode_enum(carrier.source),
                name=carrier.name,
                verdict=encode_enum(carrier.verdict),
                reason=carrier.reason,
                conversation_hash=carrier.conversation_hash,
                remarks=carrier.remarks,
            )
            for carrier in explanation.carriers
        ],
        rules=[service_pb2.RuleTrace(rule=rule.rule, matched=rule.matched) for rule in explanation.rules],
    )


def encode_client_policy(
    view: ClientView, generation: int = 0, valid_until: float | None = None
) -> service_pb2.ClientPolicy:
    """Returns what a worker's client needs of the policy.

    Args:
        view: the policy.
        generation: the reuse generation in force for the stream.
        valid_until: when a scheduled change of identity takes effect, in seconds since the epoch.
    """
    message = service_pb2.ClientPolicy(
        revision=view.revision,
        identity_epoch=view.identity_epoch,
        local_sources=[encode_enum(source) for source in view.local_sources],
        scope=encode_enum(view.scope),
        identity_headers=view.headers,
        identity_metadata=view.metadata,
        identity_body=view.body,
        identity_annotations=view.annotations,
        log_plain_ids=view.logs_plain_ids,
        per_request_headers=view.per_request_headers,
        identity_baggage=view.baggage,
        reuse_generation=generation,
    )
    if view.reuse_max_age_s:
        message.reuse_max_age.FromNanoseconds(int(view.reuse_max_age_s * 1e9))
    if valid_until is not None:
        message.valid_until.FromNanoseconds(int(valid_until * 1e9))
    return message


def encode_applied(applied: Applied) -> service_pb2.AppliedDecision:
    """Returns what the client applied as a message."""
    return service_pb2.AppliedDecision(
        directive=encode_enum(applied.directive), dp_rank=applied.dp_rank, decision_id=applied.decision_id
    )


def encode_finish(report: FinishReport) -> service_pb2.Finish:
    """Returns the report as a message, as it came."""
    return service_pb2.Finish(
        seq=report.seq,
        request_id=report.request_id,
        phase=encode_enum(report.phase),
        decision_id=report.decision_id,
        outcome=encode_enum(report.outcome),
        applied_directive=encode_enum(report.applied_directive),
        id_attached=report.id_attached,
        local_reason=report.local_reason,
        observed_dp_rank=report.observed_dp_rank,
        cached_tokens=report.cached_tokens,
        applied_dp_rank=report.applied_dp_rank,
        reused=report.reused,
    )
