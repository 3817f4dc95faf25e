"""Between the client's values and the contract's messages; with `_stub` the only module that knows these."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from routing_hints import tokens
from routing_hints.limits import MAX_DP_SIZE, MAX_ENGINES, MAX_ID_BYTES, MAX_UINT32
from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import (
    FinishOutcome,
    IdentitySource,
    IdScope,
    PlacementState,
    RankDirective,
)
from worker_client._engine import EngineProfile
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._pending_request import PendingRequest
from worker_client._plan import PlanRecord
from worker_client._request import RequestFacts
from worker_client._selected_carriers import SelectedCarriers, select_carriers

_DIRECTIVES = {int(member): member for member in RankDirective if member}
_SOURCES = {int(member): member for member in IdentitySource if member}
_PLACEMENT_STATES = {int(member): member for member in PlacementState if member}
_SCOPES = {int(member): member for member in IdScope if member}


def encode_engine(engine: EngineProfile) -> types_pb2.EngineProfile:
    """Returns the message of an engine profile."""
    return types_pb2.EngineProfile(
        instance_id=name_instance(engine.instance_id),
        dialect=_number(engine.dialect),
        adp_router=_number(engine.adp_router),
        rank_source=_number(engine.rank_source),
        records_first_rank=engine.records_first_rank,
        dp_size=min(max(engine.dp_size, 0), MAX_DP_SIZE),
        subagent_affinity=engine.subagent_affinity,
        wants_conversation_id=engine.wants_conversation_id,
        version=engine.version[:64],
        max_active_requests=min(max(engine.max_active_requests, 0), MAX_UINT32),
    )


def encode_request(
    facts: RequestFacts, policy: ClientPolicy, engine: EngineProfile
) -> service_pb2.EnrichRequest:
    """Returns a request for a call without a stream, with its engine."""
    message = service_pb2.EnrichRequest()
    _fill_facts(message, facts, select_carriers(facts, policy))
    message.engine.CopyFrom(encode_engine(engine))
    return message


def fill_item(item: service_pb2.EnrichItem, pending: PendingRequest) -> None:
    """Fills in an item of the stream, which has its engine."""
    message = item.request
    _fill_facts(message, pending.facts, pending.carriers)
    message.engine_instance = name_instance(pending.engine.instance_id)
    if pending.known_rank is not None:
        message.known_rank = pending.known_rank
    applied = pending.applied
    if applied is not None:
        item.applied.directive = _number(applied.directive)
        item.applied.decision_id = applied.decision_id
        if applied.dp_rank is not None:
            item.applied.dp_rank = applied.dp_rank


def _fill_facts(message: service_pb2.EnrichRequest, facts: RequestFacts, carriers: SelectedCarriers) -> None:
    message.request_id = facts.request_id
    message.phase = _number(facts.phase)
    message.kind = _number(facts.kind)
    message.model = facts.model
    message.tenant = facts.tenant
    message.prompt_tokens = facts.prompt_tokens
    message.traceparent = facts.traceparent
    if facts.router_rank is not None:
        message.hints.dp_rank = facts.router_rank
    _fill_identity(message.identity, facts, carriers)


def _fill_identity(identity: types_pb2.Identity, facts: RequestFacts, carriers: SelectedCarriers) -> None:
    identity.conversation_id = facts.conversation_id
    agent = facts.agent_context
    if agent is not None:
        message = identity.agent_context
        message.session_id = agent.session_id
        message.parent_session_id = agent.parent_session_id
        message.trajectory_id = agent.trajectory_id
        message.parent_trajectory_id = agent.parent_trajectory_id
        if agent.session_final is not None:
            message.session_final = agent.session_final
    control = facts.session_control
    if control is not None:
        identity.session_control.session_id = control.session_id
        identity.session_control.action = control.action
        identity.session_control.timeout = control.timeout
    for name, value in (*carriers.headers, *carriers.per_request_headers):
        identity.headers[name] = value
    for name, value in carriers.metadata:
        identity.metadata[name] = value
    for name, value in carriers.body:
        identity.body[name] = value
    identity.annotations.extend(carriers.annotations)


def decode_decision(response: service_pb2.EnrichResponse) -> Decision:
    """Returns the decision in a response; an unknown directive is FORWARD, as the contract requires."""
    hints = response.hints
    directive = _DIRECTIVES.get(response.rank_directive, RankDirective.FORWARD)
    return Decision(
        directive,
        Origin.SIDECAR,
        hints.conversation_id or None,
        hints.affinity_key or None,
        hints.dp_rank if directive is RankDirective.PLACE and hints.HasField("dp_rank") else None,
        _SOURCES.get(response.source, IdentitySource.NONE),
        response.source_detail,
        _PLACEMENT_STATES.get(response.placement, PlacementState.NONE),
        response.decision_id,
        response.conversation_hash,
        response.policy_revision,
        tuple(response.notices),
        response.reusable,
    )


def decode_policy(policy: service_pb2.ClientPolicy) -> ClientPolicy:
    """Returns what the sidecar's policy lets the client do; carriers that it does not know end its list."""
    structured = (
        IdentitySource.CONVERSATION_ID,
        IdentitySource.AGENT_CONTEXT,
        IdentitySource.SESSION_CONTROL,
    )
    return ClientPolicy(
        revision=policy.revision,
        local_sources=tuple(_take_known(policy.local_sources, structured)),
        scope=_SCOPES.get(policy.scope, IdScope.ALL if policy.scope else IdScope.WEAK),
        headers=tuple(policy.identity_headers),
        metadata=tuple(policy.identity_metadata),
        body=tuple(policy.identity_body),
        annotations=tuple(policy.identity_annotations),
        per_request_headers=tuple(policy.per_request_headers),
        log_plain_ids=policy.log_plain_ids,
        baggage=tuple(policy.identity_baggage),
        generation=policy.reuse_generation,
        reuse_max_age_s=policy.reuse_max_age.ToNanoseconds() / 1e9,
        valid_until_s=policy.valid_until.ToNanoseconds() / 1e9 if policy.HasField("valid_until") else None,
    )


def _take_known(numbers: Iterable[int], known: tuple[IdentitySource, ...]) -> Iterable[IdentitySource]:
    for number in numbers:
        source = _SOURCES.get(number)
        if source not in known:
            return
        yield source


def encode_finish(record: PlanRecord, outcome: FinishOutcome) -> service_pb2.Finish:
    """Returns the report that a plan's request ended; the queue adds what names its item."""
    reason = (record.params.reason if record.params is not None else "") or record.reason
    is_reused = record.decision.origin is Origin.REUSED
    is_placed = record.applied_directive is RankDirective.PLACE
    return service_pb2.Finish(
        request_id=record.facts.request_id,
        phase=_number(record.facts.phase),
        # A reused decision was taken about an earlier request; the item's number names this one.
        decision_id="" if is_reused else record.decision.decision_id,
        reused=is_reused,
        applied_dp_rank=record.params.rank if record.params is not None and is_placed else None,
        outcome=_number(outcome),
        applied_directive=_number(record.applied_directive),
        id_attached=record.id_attached,
        local_reason=reason,
        observed_dp_rank=record.observation.rank,
        cached_tokens=record.observation.cached_tokens,
    )


def encode_cancelled(facts: RequestFacts) -> service_pb2.Finish:
    """Returns the report of a request whose caller was cancelled before there was a plan."""
    return service_pb2.Finish(
        request_id=facts.request_id,
        phase=_number(facts.phase),
        outcome=_number(FinishOutcome.CANCELLED),
        local_reason=tokens.CANCELLED_WHILE_WAITING,
    )


@lru_cache(maxsize=MAX_ENGINES)
def name_instance(instance_id: str) -> str:
    """Returns an engine's name on the wire: its instance id, or a hash of one that does not fit."""
    encoded = instance_id.encode(errors="surrogatepass")
    is_fit = 0 < len(encoded) <= MAX_ID_BYTES and not any("\ud800" <= c <= "\udfff" for c in instance_id)
    return instance_id if is_fit else blake2b(encoded, digest_size=16).hexdigest()


def _number(member: int) -> Any:
    """Returns the number as the contract's enum, which the generated stubs want by type."""
    return int(member)
