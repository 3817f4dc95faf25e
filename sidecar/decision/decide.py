"""The decision about one engine request: a pure function of it, the policy and the guard's judgement."""

from __future__ import annotations

from collections.abc import Mapping, Set

from routing_hints import tokens
from routing_hints.conversation_id import (
    ConversationHash,
    ConversationId,
    explain_derivation,
    hash_conversation,
    make_conversation_id,
)
from routing_hints.vocabulary import AdpRouter, IdentitySource, PlacementState, RankDirective
from sidecar.decision.directive import rule_on
from sidecar.identity.carrier import TENANT_HEADER, fold_header_names
from sidecar.identity.resolution import Claim, resolve_claim, trace_carriers
from sidecar.model import Decision, Explanation, PlacementKey, Request, RuleTrace
from sidecar.policy.compiled import ROLLOUT_BUCKETS, CompiledPolicy

_NO_KEY = PlacementKey(ConversationHash(""), ConversationHash(""), "")
_NONE_SUSPENDED: frozenset[str] = frozenset()


def decide(request: Request, policy: CompiledPolicy, suspended: Set[str] = _NONE_SUSPENDED) -> Decision:
    """Returns the decision about one request; raises nothing, whatever the request holds.

    Args:
        request: the request.
        policy: the policy in force.
        suspended: names of carriers whose ids are not attached.
    """
    headers = fold_header_names(request.identity.headers)
    return _decide(request, policy, headers, suspended)


def explain(request: Request, policy: CompiledPolicy, suspended: Set[str] = _NONE_SUSPENDED) -> Explanation:
    """Returns what `decide` decides, with every carrier and every rule that was considered."""
    headers = fold_header_names(request.identity.headers)
    tenant = _find_tenant(request, headers)

    def name_conversation(claim: Claim) -> tuple[ConversationHash, str]:
        conversation_id = make_conversation_id(claim.session_id, tenant, policy.identity.naming, claim.run_id)
        derivation = explain_derivation(claim.session_id, tenant, policy.identity.naming, claim.run_id)
        return hash_conversation(conversation_id), derivation

    rules: list[RuleTrace] = []
    decision = _decide(request, policy, headers, suspended, rules)
    carriers = trace_carriers(policy.identity, request.identity, headers, name_conversation)
    return Explanation(decision, carriers, tuple(rules))


def apply_placement(
    request: Request, decision: Decision, rank: int | None, placement_state: PlacementState
) -> Decision:
    """Returns a PLACE decision completed by placement.

    Args:
        request: the request.
        decision: what `decide` said.
        rank: where the request should go; None while the engine does not follow, which forwards.
        placement_state: what the placement table had.
    """
    directive, notices = RankDirective.PLACE, decision.notices
    if rank is None:
        directive, notices = RankDirective.FORWARD, (tokens.PLACEMENT_NOT_HONORED, *notices)
    elif request.engine.adp_router is AdpRouter.CONVERSATION and placement_state is not PlacementState.NEW:
        # The engine has recorded the first rank and returns to it by itself.
        directive, rank = RankDirective.WITHHOLD, None
    # Unbound, and the first turn on an engine that records its rank, hold for one request only.
    is_once = placement_state is PlacementState.NONE and rank is not None
    is_once = is_once or (
        directive is RankDirective.PLACE and request.engine.adp_router is AdpRouter.CONVERSATION
    )
    return decision._replace(
        directive=directive,
        notices=notices,
        placement_key=None,
        dp_rank=rank,
        placement=placement_state,
        reusable=decision.reusable and not is_once,
    )


def _decide(
    request: Request,
    policy: CompiledPolicy,
    headers: Mapping[str, str],
    suspended: Set[str],
    tried: list[RuleTrace] | None = None,
) -> Decision:
    claim = resolve_claim(policy.identity, request.identity, headers)
    if claim is None:
        ruling = rule_on(request, policy, "", tried)
        return Decision(
            directive=ruling.directive,
            source=IdentitySource.NONE,
            source_detail="",
            conversation_hash=ConversationHash(""),
            conversation_id=None,
            affinity_key=None,
            session_final=False,
            notices=ruling.notices,
            policy_revision=policy.revision,
            identity_epoch=policy.identity_epoch,
            placement_key=_NO_KEY if ruling.directive is RankDirective.PLACE else None,
        )
    tenant = _find_tenant(request, headers)
    conversation_id = make_conversation_id(claim.session_id, tenant, policy.identity.naming, claim.run_id)
    is_suspended = claim.name in suspended
    if tried is not None:
        tried.append(RuleTrace(tokens.SINGLE_USE_CARRIER, is_suspended))
    ruling = rule_on(request, policy, "" if is_suspended else conversation_id, tried)
    notices = ruling.notices
    if is_suspended:
        notices = (tokens.SINGLE_USE_CARRIER, *notices)
    if claim.final:
        notices = (*notices, tokens.SESSION_FINAL)
    attached = ruling.attaches_id
    conversation_hash = hash_conversation(conversation_id)
    placement_key = None
    if ruling.directive is RankDirective.PLACE and is_suspended:
        placement_key = _NO_KEY
    elif ruling.directive is RankDirective.PLACE:
        parent = ConversationHash("")
        if claim.parent_id and request.phase in policy.identity.subagent_phases:
            parent = hash_conversation(_name_parent(claim, tenant, policy))
        placement_key = PlacementKey(conversation_hash, parent, tenant)
    return Decision(
        directive=ruling.directive,
        source=claim.source,
        source_detail=claim.name,
        conversation_hash=conversation_hash,
        conversation_id=conversation_id if attached else None,
        affinity_key=_choose_affinity_key(request, policy, claim, tenant, conversation_id)
        if attached
        else None,
        session_final=claim.final,
        notices=notices,
        policy_revision=policy.revision,
        identity_epoch=policy.identity_epoch,
        placement_key=placement_key,
        # Without an id that counts, a rollout goes by the request's own.
        reusable=not (is_suspended and policy.rollout_buckets < ROLLOUT_BUCKETS),
    )


def _find_tenant(request: Request, headers: Mapping[str, str]) -> str:
    return request.tenant.strip() or headers.get(TENANT_HEADER, "").strip()


def _choose_affinity_key(
    request: Request, policy: CompiledPolicy, claim: Claim, tenant: str, conversation_id: ConversationId
) -> ConversationId:
    by_parent = (
        claim.parent_id
        and request.engine.subagent_affinity
        and request.phase in policy.identity.subagent_phases
    )
    return _name_parent(claim, tenant, policy) if by_parent else conversation_id


def _name_parent(claim: Claim, tenant: str, policy: CompiledPolicy) -> ConversationId:
    return make_conversation_id(claim.parent_id, tenant, policy.identity.naming, claim.run_id)
