"""The client's own decision while the sidecar is silent: never worse than Dynamo's in-worker rule.

It resolves structured carriers alone, and only those ids that the sidecar would pass verbatim, so that an
outage never gives a conversation a second id.
"""

from __future__ import annotations

from worker_client._conversation import hash_conversation, is_verbatim, usable_id
from worker_client._engine import EngineProfile
from worker_client._model import (
    AdpRouter,
    Answer,
    ClientPolicy,
    EngineDialect,
    IdentitySource,
    Origin,
    RankDirective,
    RankSource,
)
from worker_client._request import RequestFacts


def resolve_locally(facts: RequestFacts, engine: EngineProfile, policy: ClientPolicy) -> Answer:
    """Returns what the client answers for itself. Pure.

    An empty `policy.local_sources` means that the sidecar's policy acts on nothing that the client could
    resolve alone. The first usable carrier decides, as at the sidecar: where its id would be derived, no
    later carrier is tried, and the request is forwarded without an id.
    """
    without_id = _directive(engine, attach=False) if policy.local_sources else RankDirective.FORWARD
    forwarded = Answer(without_id, Origin.FORWARDED, policy_revision=policy.revision)
    for source in policy.local_sources:
        session_id, detail = _read_carrier(facts, source)
        if not session_id:
            continue
        if not is_verbatim(session_id, facts.tenant, policy.scope):
            return forwarded
        attach = engine.dialect is not EngineDialect.RANK_ONLY and (
            engine.wants_conversation_id or _router_pins(engine)
        )
        return Answer(
            _directive(engine, attach=attach),
            Origin.LOCAL_RULE,
            conversation_id=session_id if attach else None,
            affinity_key=session_id if attach else None,
            source=source,
            source_detail=detail,
            conversation_hash=hash_conversation(session_id),
            policy_revision=policy.revision,
        )
    return forwarded


def _router_pins(engine: EngineProfile) -> bool:
    """Returns whether the engine's router pins an id that it is told, under this rank source."""
    return engine.adp_router is AdpRouter.CONVERSATION and (
        engine.rank_source is not RankSource.SIDECAR or engine.records_first_rank
    )


def _directive(engine: EngineProfile, *, attach: bool) -> RankDirective:
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE and engine.rank_source is RankSource.ENGINE:
        return RankDirective.WITHHOLD
    engine_places = engine.rank_source in (RankSource.UNSPECIFIED, RankSource.ENGINE)
    if engine.adp_router is AdpRouter.CONVERSATION and engine_places and attach:
        return RankDirective.WITHHOLD
    return RankDirective.FORWARD


def _read_carrier(facts: RequestFacts, source: IdentitySource) -> tuple[str, str]:
    """Returns a structured carrier's usable session id and its name, empty where it has none."""
    if source is IdentitySource.CONVERSATION_ID:
        return usable_id(facts.conversation_id), "conversation_id"
    if source is IdentitySource.AGENT_CONTEXT and facts.agent_context is not None:
        if facts.agent_context.trajectory_id:
            return usable_id(facts.agent_context.trajectory_id), "agent_context.trajectory_id"
        return usable_id(facts.agent_context.session_id), "agent_context.session_id"
    if source is IdentitySource.SESSION_CONTROL and facts.session_control is not None:
        return usable_id(facts.session_control.session_id), "session_control.session_id"
    return "", ""
