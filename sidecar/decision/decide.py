"""The decision about one engine request: a pure function of it, the policy and the guard's judgement."""

from __future__ import annotations

from collections.abc import Mapping, Set

from sidecar.conversation import explain_derivation, hash_conversation, make_conversation_id
from sidecar.decision.directive import rule_on
from sidecar.identity.carrier import TENANT_HEADER, fold_header_names
from sidecar.identity.resolution import Claim, resolve_claim, trace_carriers
from sidecar.model import (
    AdpRouter,
    Answer,
    ConversationHash,
    ConversationId,
    Decision,
    Explanation,
    IdentitySource,
    PlacementKey,
    Query,
    RankDirective,
    RuleTrace,
)
from sidecar.policy.compiled import CompiledPolicy

_NO_KEY = PlacementKey(ConversationHash(""), ConversationHash(""), "")
_TRUSTS_ALL: frozenset[str] = frozenset()


def decide(query: Query, policy: CompiledPolicy, distrusted: Set[str] = _TRUSTS_ALL) -> Answer:
    """Returns the answer to one request; raises nothing, whatever the request holds.

    Args:
        query: the request.
        policy: the policy in force.
        distrusted: names of carriers whose ids are not attached.
    """
    headers = fold_header_names(query.identity.headers)
    return _answer(query, policy, headers, distrusted)


def explain(query: Query, policy: CompiledPolicy, distrusted: Set[str] = _TRUSTS_ALL) -> Explanation:
    """Returns the answer of `decide` with every carrier and every rule that was considered."""
    headers = fold_header_names(query.identity.headers)
    tenant = _find_tenant(query, headers)

    def name_conversation(claim: Claim) -> tuple[ConversationHash, str]:
        conversation_id = make_conversation_id(claim.session_id, tenant, policy.naming, claim.run_id)
        derivation = explain_derivation(claim.session_id, tenant, policy.naming, claim.run_id)
        return hash_conversation(conversation_id), derivation

    rules: list[RuleTrace] = []
    answer = _answer(query, policy, headers, distrusted, rules)
    carriers = trace_carriers(policy, query.identity, headers, name_conversation)
    return Explanation(answer, carriers, tuple(rules))


def apply_placement(query: Query, answer: Answer, rank: int | None, decision: Decision) -> Answer:
    """Returns an answer that says PLACE with what placement said.

    Args:
        query: the request.
        answer: what `decide` said.
        rank: where the request should go; None while the engine does not follow, which forwards.
        decision: what the placement table knew.
    """
    directive, notices = RankDirective.PLACE, answer.notices
    if rank is None:
        directive, notices = RankDirective.FORWARD, ("placement-not-honoured", *notices)
    elif query.engine.adp_router is AdpRouter.CONVERSATION and decision is not Decision.NEW:
        # The engine has recorded the first rank and returns to it by itself.
        directive, rank = RankDirective.WITHHOLD, None
    return answer._replace(
        directive=directive, notices=notices, placement_key=None, dp_rank=rank, decision=decision
    )


def _answer(
    query: Query,
    policy: CompiledPolicy,
    headers: Mapping[str, str],
    distrusted: Set[str],
    tried: list[RuleTrace] | None = None,
) -> Answer:
    claim = resolve_claim(policy, query.identity, headers)
    if claim is None:
        ruling = rule_on(query, policy, "", tried)
        return Answer(
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
    tenant = _find_tenant(query, headers)
    conversation_id = make_conversation_id(claim.session_id, tenant, policy.naming, claim.run_id)
    is_distrusted = claim.name in distrusted
    if tried is not None:
        tried.append(RuleTrace("one-shot-carrier", is_distrusted))
    ruling = rule_on(query, policy, "" if is_distrusted else conversation_id, tried)
    notices = ruling.notices
    if is_distrusted:
        notices = ("one-shot-carrier", *notices)
    if claim.final:
        notices = (*notices, "session-final")
    attached = ruling.attaches_id
    conversation_hash = hash_conversation(conversation_id)
    placement_key = None
    if ruling.directive is RankDirective.PLACE and is_distrusted:
        placement_key = _NO_KEY
    elif ruling.directive is RankDirective.PLACE:
        parent = ConversationHash("")
        if claim.parent_id and query.phase in policy.subagent_phases:
            parent = hash_conversation(_name_parent(claim, tenant, policy))
        placement_key = PlacementKey(conversation_hash, parent, tenant)
    return Answer(
        directive=ruling.directive,
        source=claim.source,
        source_detail=claim.name,
        conversation_hash=conversation_hash,
        conversation_id=conversation_id if attached else None,
        affinity_key=_choose_affinity_key(query, policy, claim, tenant, conversation_id)
        if attached
        else None,
        session_final=claim.final,
        notices=notices,
        policy_revision=policy.revision,
        identity_epoch=policy.identity_epoch,
        placement_key=placement_key,
    )


def _find_tenant(query: Query, headers: Mapping[str, str]) -> str:
    return query.tenant.strip() or headers.get(TENANT_HEADER, "").strip()


def _choose_affinity_key(
    query: Query, policy: CompiledPolicy, claim: Claim, tenant: str, conversation_id: ConversationId
) -> ConversationId:
    by_parent = claim.parent_id and query.engine.subagent_affinity and query.phase in policy.subagent_phases
    return _name_parent(claim, tenant, policy) if by_parent else conversation_id


def _name_parent(claim: Claim, tenant: str, policy: CompiledPolicy) -> ConversationId:
    return make_conversation_id(claim.parent_id, tenant, policy.naming, claim.run_id)
