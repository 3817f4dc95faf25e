"""From the decision's values to the contract's messages."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.model import Answer, Explanation, FinishReport
from sidecar.policy.compiled import ClientView


def encode_answer(answer: Answer, decision_id: str) -> service_pb2.EnrichResponse:
    """Returns the answer as a message; `hints` is there only where an id or a rank is."""
    hints = None
    if answer.conversation_id is not None or answer.dp_rank is not None:
        hints = types_pb2.RoutingHints(
            conversation_id=answer.conversation_id,
            affinity_key=answer.affinity_key,
            dp_rank=answer.dp_rank,
        )
    return _encode_answer(answer, decision_id, hints)


def encode_answer_without_ids(answer: Answer, decision_id: str) -> service_pb2.EnrichResponse:
    """Returns the answer as a message that holds no id of a conversation."""
    hints = None if answer.dp_rank is None else types_pb2.RoutingHints(dp_rank=answer.dp_rank)
    return _encode_answer(answer, decision_id, hints)


def _encode_answer(
    answer: Answer, decision_id: str, hints: types_pb2.RoutingHints | None
) -> service_pb2.EnrichResponse:
    return service_pb2.EnrichResponse(
        hints=hints,
        rank_directive=_number(answer.directive),
        source=_number(answer.source),
        source_detail=answer.source_detail,
        decision=_number(answer.decision),
        decision_id=decision_id,
        conversation_hash=answer.conversation_hash,
        policy_revision=answer.policy_revision,
        identity_epoch=answer.identity_epoch,
        notices=answer.notices,
    )


def encode_explanation(explanation: Explanation) -> service_pb2.ExplainResponse:
    """Returns the explanation as a message."""
    return service_pb2.ExplainResponse(
        answer=encode_answer(explanation.answer, ""),
        carriers=[
            service_pb2.CarrierTrace(
                source=_number(carrier.source),
                name=carrier.name,
                verdict=_number(carrier.verdict),
                reason=carrier.reason,
                conversation_hash=carrier.conversation_hash,
                remarks=carrier.remarks,
            )
            for carrier in explanation.carriers
        ],
        rules=[service_pb2.RuleTrace(rule=rule.rule, matched=rule.matched) for rule in explanation.rules],
    )


def encode_client_policy(view: ClientView) -> service_pb2.ClientPolicy:
    """Returns what a worker's client needs to know of the policy."""
    return service_pb2.ClientPolicy(
        revision=view.revision,
        identity_epoch=view.identity_epoch,
        local_sources=[_number(source) for source in view.local_sources],
        scope=_number(view.scope),
        identity_headers=view.headers,
        identity_metadata=view.metadata,
        identity_body=view.body,
        identity_annotations=view.annotations,
        log_plain_ids=view.logs_plain_ids,
        passing_headers=view.passing_headers,
    )


def encode_finish(report: FinishReport) -> service_pb2.Finish:
    """Returns the report as a message, as it came."""
    numbers: dict[str, Any] = {
        "phase": report.phase,
        "outcome": report.outcome,
        "applied_directive": report.applied_directive,
    }
    return service_pb2.Finish(
        request_id=report.request_id,
        decision_id=report.decision_id,
        id_attached=report.id_attached,
        local_reason=report.local_reason,
        observed_dp_rank=report.observed_dp_rank,
        cached_tokens=report.cached_tokens,
        seq=report.seq,
        **numbers,
    )


def _number(value: IntEnum) -> Any:
    # The stubs name the contract's enums, whose numbers ours share.
    return value
