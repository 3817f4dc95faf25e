"""The client's own decision while the sidecar is silent: never worse than Dynamo's in-worker rule.

It resolves structured carriers alone, and only those ids that the sidecar would pass verbatim, so that an
outage never gives a conversation a second id.
"""

from __future__ import annotations

from routing_hints.conversation_id import Naming, explain_derivation, explain_unusable, hash_conversation
from routing_hints.vocabulary import AdpRouter, IdentitySource, RankDirective, RankSource
from worker_client._engine import EngineProfile
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._request import RequestFacts


def resolve_locally(facts: RequestFacts, engine: EngineProfile, policy: ClientPolicy) -> Decision:
    """Returns what the client decides by itself. Pure.

    An empty `policy.local_sources` means that the sidecar's policy acts on nothing that the client could
    resolve alone. The first usable carrier decides, as at the sidecar: where its id would be derived, no
    later carrier is tried, and the request is forwarded without an id.
    """
    without_id = _directive(engine, attach=False) if policy.local_sources else RankDirective.FORWARD
    forwarded = Decision(without_id, Origin.FORWARDED, policy_revision=policy.revision)
    for source in policy.local_sources:
        session_id, detail = _read_carrier(facts, source)
        if not session_id:
            continue
        if explain_derivation(session_id, facts.tenant, Naming(policy.scope)):
            return forwarded
        attach = engine.dialect.carries_conversation_id and (
            engine.wants_conversation_id or _router_pins(engine)
        )
        return Decision(
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
    """Returns whether the engine's router pins the ids that it receives, under this rank source."""
    return engine.adp_router is AdpRouter.CONVERSATION and (
        engine.rank_source is not RankSource.SIDECAR or engine.records_first_rank
    )


def _directive(engine: EngineProfile, *, attach: bool) -> RankDirective:
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE and engine.rank_source is RankSource.ENGINE:
        return RankDirective.WITHHOLD
    engine_places = engine.rank_source.lets_pinning_engine_choose
    if engine.adp_router is AdpRouter.CONVERSATION and engine_places and attach:
        return RankDirective.WITHHOLD
    return RankDirective.FORWARD


def _read_carrier(facts: RequestFacts, source: IdentitySource) -> tuple[str, str]:
    """Returns a structured carrier's usable session id and its name, empty where it has none."""
    value, detail = "", ""
    agent, control = facts.agent_context, facts.session_control
    if source is IdentitySource.CONVERSATION_ID:
        value, detail = facts.conversation_id, "conversation_id"
    elif source is IdentitySource.AGENT_CONTEXT and agent is not None and agent.trajectory_id:
        value, detail = agent.trajectory_id, "agent_context.trajectory_id"
    elif source is IdentitySource.AGENT_CONTEXT and agent is not None:
        value, detail = agent.session_id, "agent_context.session_id"
    elif source is IdentitySource.SESSION_CONTROL and control is not None:
        value, detail = control.session_id, "session_control.session_id"
    session_id = value.strip()
    return ("", "") if explain_unusable(session_id) else (session_id, detail)
