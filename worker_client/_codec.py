"""Between the client's values and the contract's messages; with `_stub` the only module that knows these."""

from __future__ import annotations

from collections.abc import Iterable

from routing_hints.v1 import service_pb2, types_pb2
from worker_client._engine import EngineProfile
from worker_client._model import (
    Answer,
    ClientPolicy,
    Decision,
    FinishOutcome,
    IdentitySource,
    IdScope,
    Origin,
    Phase,
    RankDirective,
)
from worker_client._request import MAX_ENTRIES, MAX_RANK, RequestFacts
from worker_client._selected_carriers import Carried, pick_carriers

_DIRECTIVES = {int(member): member for member in RankDirective if member}
_SOURCES = {int(member): member for member in IdentitySource if member}
_DECISIONS = {int(member): member for member in Decision if member}
_SCOPES = {int(member): member for member in IdScope if member}

_MAX_UINT32 = 2**32 - 1
BODY_FIELDS = (
    "conversation",
    "conversation.id",
    "litellm_session_id",
    "metadata.session_id",
    "metadata.user_id",
    "prompt_cache_key",
    "session_id",
    "session_params.session_id",
)
"""Of a request's body, by dotted path, what can say anything about its conversation."""
_SECRET_HEADERS = frozenset({"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"})


def encode_engine(engine: EngineProfile) -> types_pb2.EngineProfile:
    """Returns the message of an engine profile."""
    return types_pb2.EngineProfile(
        instance_id=engine.instance_id,
        dialect=int(engine.dialect),  # type: ignore[arg-type]
        adp_router=int(engine.adp_router),  # type: ignore[arg-type]
        rank_source=int(engine.rank_source),  # type: ignore[arg-type]
        records_first_rank=engine.records_first_rank,
        dp_size=min(max(engine.dp_size, 0), MAX_RANK + 1),
        subagent_affinity=engine.subagent_affinity,
        wants_conversation_id=engine.wants_conversation_id,
        version=engine.version[:64],
        max_active_requests=min(max(engine.max_active_requests, 0), _MAX_UINT32),
    )


def encode_request(
    facts: RequestFacts, policy: ClientPolicy, engine: EngineProfile
) -> service_pb2.EnrichRequest:
    """Returns the question about one request by itself."""
    message = service_pb2.EnrichRequest()
    fill_request(
        message,
        facts,
        pick_carriers(facts, policy),
        engine_pb=encode_engine(engine),
        router_rank=facts.router_rank,
        known_rank=None,
    )
    return message


def name_every_carrier(facts: RequestFacts) -> ClientPolicy:
    """Returns a policy that sends whatever can name a conversation, for a sidecar that names no carriers.

    That are all headers but those that hold a secret, since any may be the site's own; of the body the known
    fields alone, since the rest is the conversation itself.
    """
    metadata = [name for name in facts.metadata if isinstance(name, str)]
    return ClientPolicy(
        headers=tuple(name for name in facts.headers if name not in _SECRET_HEADERS),
        metadata=tuple(metadata[:MAX_ENTRIES]),
        body=BODY_FIELDS,
        annotations=("",),
    )


def fill_request(
    message: service_pb2.EnrichRequest,
    facts: RequestFacts,
    carried: Carried,
    *,
    engine_pb: types_pb2.EngineProfile,
    router_rank: int | None,
    known_rank: int | None,
) -> None:
    """Fills in the question about one request."""
    message.request_id = facts.request_id
    message.phase = int(facts.phase)  # type: ignore[assignment]
    message.kind = int(facts.kind)  # type: ignore[assignment]
    message.model = facts.model
    message.tenant = facts.tenant
    message.prompt_tokens = facts.prompt_tokens
    message.traceparent = facts.traceparent
    message.engine.CopyFrom(engine_pb)
    if known_rank is not None:
        message.known_rank = known_rank
    if router_rank is not None:
        message.hints.dp_rank = router_rank
    if facts.router_prefill_rank is not None:
        message.hints.prefill_dp_rank = facts.router_prefill_rank
    _fill_identity(message.identity, facts, carried)


def _fill_identity(identity: types_pb2.Identity, facts: RequestFacts, carried: Carried) -> None:
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
    for name, value in (*carried.headers, *carried.passing_headers):
        identity.headers[name] = value
    for name, value in carried.metadata:
        identity.metadata[name] = value
    for name, value in carried.body:
        identity.body[name] = value
    identity.annotations.extend(carried.annotations)


def decode_answer(response: service_pb2.EnrichResponse) -> Answer:
    """Returns the answer in a response; an unknown directive is FORWARD, as the contract says."""
    hints = response.hints
    directive = _DIRECTIVES.get(response.rank_directive, RankDirective.FORWARD)
    return Answer(
        directive,
        Origin.SIDECAR,
        hints.conversation_id or None,
        hints.affinity_key or None,
        hints.dp_rank if directive is RankDirective.PLACE and hints.HasField("dp_rank") else None,
        _SOURCES.get(response.source, IdentitySource.NONE),
        response.source_detail,
        _DECISIONS.get(response.decision, Decision.NONE),
        response.decision_id,
        response.conversation_hash,
        response.policy_revision,
        tuple(response.notices),
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
        passing_headers=tuple(policy.passing_headers),
        log_plain_ids=policy.log_plain_ids,
    )


def _take_known(numbers: Iterable[int], known: tuple[IdentitySource, ...]) -> Iterable[IdentitySource]:
    for number in numbers:
        source = _SOURCES.get(number)
        if source not in known:
            return
        yield source


def encode_finish(
    *,
    request_id: str,
    phase: Phase,
    decision_id: str,
    outcome: FinishOutcome,
    applied_directive: RankDirective,
    id_attached: bool,
    local_reason: str,
    observed_rank: int | None,
    cached_tokens: int | None,
) -> service_pb2.Finish:
    """Returns the message for the end of one request; the stream adds what names it there."""
    message = service_pb2.Finish(
        request_id=request_id,
        phase=int(phase),  # type: ignore[arg-type]
        decision_id=decision_id,
        outcome=int(outcome),  # type: ignore[arg-type]
        applied_directive=int(applied_directive),  # type: ignore[arg-type]
        id_attached=id_attached,
        local_reason=local_reason,
    )
    if observed_rank is not None:
        message.observed_dp_rank = observed_rank
    if cached_tokens is not None:
        message.cached_tokens = cached_tokens
    return message
