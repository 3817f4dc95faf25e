"""What to do with the attention-DP rank, and whether to attach the id: the first rule that matches.

`_GATES` and `_TABLE` are the rule table of docs/contract.md, row by row. A row that places leaves the rank to
`placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from routing_hints import tokens
from routing_hints.vocabulary import AdpRouter, RankDirective, RankSource
from sidecar.model import Request, RuleTrace
from sidecar.policy.compiled import ROLLOUT_BUCKETS, CompiledPolicy

MAX_PLACED_RANKS = 1_024
"""More ranks than any engine has; bounds what a wrong `dp_size` can cost."""

_FORWARD, _WITHHOLD, _PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
_WOULD = {
    _FORWARD: tokens.WOULD_FORWARD,
    _WITHHOLD: tokens.WOULD_WITHHOLD,
    _PLACE: tokens.WOULD_PLACE,
}
_ENGINE_CHOOSES = [source for source in RankSource if source.lets_pinning_engine_choose]


class _Attach(Enum):
    NEVER = 0
    IF_WANTED = 1
    ALWAYS = 2


_Condition: TypeAlias = Callable[[Request, CompiledPolicy, str], bool]
_Notices: TypeAlias = Callable[[Request, CompiledPolicy, str], tuple[str, ...]]


class Ruling(NamedTuple):
    """What the first matching rule states about one request."""

    directive: RankDirective
    attaches_id: bool
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    matches: _Condition
    directive: RankDirective
    attach: _Attach
    notices: _Notices = lambda _request, _policy, _id: ()


def _say(notice: str) -> _Notices:
    return lambda _request, _policy, _id: (notice,)


def is_in_rollout(key: str, buckets: int) -> bool:
    """Returns whether a key is among the first `buckets` of 10,000; one without a name never is."""
    if buckets >= ROLLOUT_BUCKETS:
        return True
    digest = blake2b(key.encode(), digest_size=8, person=b"rh1-rollout").digest()
    return bool(key) and int.from_bytes(digest, "big") % ROLLOUT_BUCKETS < buckets


def _conversation_router(*sources: RankSource) -> _Condition:
    chosen = frozenset(sources)
    return lambda request, _policy, conversation_id: (
        request.engine.adp_router is AdpRouter.CONVERSATION
        and bool(conversation_id)
        and request.engine.rank_source in chosen
    )


_sidecar_with_conversation_router = _conversation_router(RankSource.SIDECAR)


def _records_sidecar_rank(request: Request, policy: CompiledPolicy, conversation_id: str) -> bool:
    return (
        request.engine.records_first_rank
        and 0 < request.engine.dp_size <= MAX_PLACED_RANKS
        and _sidecar_with_conversation_router(request, policy, conversation_id)
    )


def _can_place(request: Request, policy: CompiledPolicy, _conversation_id: str) -> bool:
    return request.engine.rank_source is RankSource.SIDECAR and not _why_not_placed(request, policy)


def _why_not_placed(request: Request, policy: CompiledPolicy) -> tuple[str, ...]:
    engine = request.engine
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE:
        return (tokens.KV_CACHE_ROUTER_PLACES,)
    is_pinning = engine.adp_router is AdpRouter.CONVERSATION
    reasons: list[str] = []
    if is_pinning and not engine.records_first_rank:
        reasons.append(tokens.FIRST_RANK_NOT_RECORDED)
    if not is_pinning and request.phase not in policy.placement_phases:
        reasons.append(tokens.PLACEMENT_PHASE_OFF)
    if engine.dp_size == 0:
        reasons.append(tokens.DP_SIZE_UNKNOWN)
    elif engine.dp_size > MAX_PLACED_RANKS:
        reasons.append(tokens.DP_SIZE_TOO_LARGE)
    if not is_pinning and request.router_rank is not None and not policy.places_always:
        reasons.append(tokens.ROUTER_RANK_KEPT)
    return tuple(reasons)


def _name_idle_features(request: Request, policy: CompiledPolicy, conversation_id: str) -> tuple[str, ...]:
    engine = request.engine
    if engine.rank_source is RankSource.SIDECAR:
        return _why_not_placed(request, policy)
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE:
        is_bypassed = request.router_rank is not None and engine.rank_source is RankSource.UNSPECIFIED
        return (tokens.RANK_BYPASSES_KV_CACHE_ROUTER,) if is_bypassed else ()
    notices: tuple[str, ...] = ()
    if conversation_id:
        if engine.adp_router is not AdpRouter.DEFAULT:
            notices = (tokens.ADP_ROUTER_UNKNOWN,)
        elif not engine.dialect.carries_conversation_id and not engine.wants_conversation_id:
            # Configuring its router would not help; an id that is wanted says so by itself.
            notices = (tokens.DIALECT_CANNOT_CARRY_ID,)
        else:
            notices = (tokens.ROUTER_PINS_NOTHING,)
    if engine.rank_source is RankSource.ENGINE and request.router_rank is not None:
        notices = (*notices, tokens.ROUTER_RANK_KEPT)
    return notices


_GATES = (
    _Rule(
        tokens.UNKNOWN_ENUM,
        lambda request, _policy, _id: bool(request.unknown_enums),
        _FORWARD,
        _Attach.NEVER,
        lambda request, _policy, _id: tuple(
            f"{tokens.UNKNOWN_ENUM}:{path}" for path in request.unknown_enums
        ),
    ),
    _Rule(
        tokens.KIND_NOT_NORMAL,
        lambda request, _policy, _id: not request.kind.is_normal,
        _FORWARD,
        _Attach.NEVER,
        _say(tokens.KIND_NOT_NORMAL),
    ),
    _Rule(
        tokens.MODE_OFF,
        lambda _request, policy, _id: policy.is_off,
        _FORWARD,
        _Attach.NEVER,
        _say(tokens.MODE_OFF),
    ),
    _Rule(
        tokens.OUTSIDE_ROLLOUT,
        lambda request, policy, conversation_id: (
            not is_in_rollout(conversation_id or request.request_id, policy.rollout_buckets)
        ),
        _FORWARD,
        _Attach.NEVER,
        _say(tokens.OUTSIDE_ROLLOUT),
    ),
)

_TABLE = (
    _Rule(
        "conversation-router-engine-rank",
        _conversation_router(*_ENGINE_CHOOSES),
        _WITHHOLD,
        _Attach.ALWAYS,
    ),
    _Rule(
        "conversation-router-router-rank",
        _conversation_router(RankSource.ROUTER),
        _FORWARD,
        _Attach.ALWAYS,
    ),
    _Rule("conversation-router-sidecar-first-rank", _records_sidecar_rank, _PLACE, _Attach.ALWAYS),
    # Withholding here would lose both kinds of placement.
    _Rule(
        "conversation-router-no-id",
        lambda request, _policy, conversation_id: (
            request.engine.adp_router is AdpRouter.CONVERSATION and not conversation_id
        ),
        _FORWARD,
        _Attach.NEVER,
        _say(tokens.NO_CONVERSATION_ID),
    ),
    # That router probes each rank's cache, which an explicit rank bypasses.
    _Rule(
        "kv-cache-router-engine-rank",
        lambda request, _policy, _id: (
            request.engine.adp_router is AdpRouter.KV_CACHE_AWARE
            and request.engine.rank_source is RankSource.ENGINE
        ),
        _WITHHOLD,
        _Attach.IF_WANTED,
    ),
    _Rule("sidecar-places", _can_place, _PLACE, _Attach.IF_WANTED),
    _Rule("otherwise", lambda _request, _policy, _id: True, _FORWARD, _Attach.IF_WANTED, _name_idle_features),
)


RULES = (
    tokens.SINGLE_USE_CARRIER,
    *(rule.name for rule in _GATES),
    tokens.MODE_SHADOW,
    *(rule.name for rule in _TABLE),
)
"""Names of all rules in the order in which Explain shows them; the first only where there is an identity."""


def rule_on(
    request: Request, policy: CompiledPolicy, conversation_id: str, tried: list[RuleTrace] | None = None
) -> Ruling:
    """Returns what the first matching rule states.

    Args:
        request: the request.
        policy: the policy in force.
        conversation_id: the request's conversation; empty for none.
        tried: receives every rule that was tried, if given.
    """
    gate = _find_match(_GATES, request, policy, conversation_id, tried)
    if gate is not None:
        return _apply(gate, request, policy, conversation_id)
    if tried is not None:
        tried.append(RuleTrace(tokens.MODE_SHADOW, policy.is_shadow))
    row = _find_match(_TABLE, request, policy, conversation_id, tried) or _TABLE[-1]
    ruling = _apply(row, request, policy, conversation_id)
    return _shadow(ruling) if policy.is_shadow else ruling


def _find_match(
    rules: Sequence[_Rule],
    request: Request,
    policy: CompiledPolicy,
    conversation_id: str,
    tried: list[RuleTrace] | None,
) -> _Rule | None:
    for rule in rules:
        matched = rule.matches(request, policy, conversation_id)
        if tried is not None:
            tried.append(RuleTrace(rule.name, matched))
        if matched:
            return rule
    return None


def _apply(rule: _Rule, request: Request, policy: CompiledPolicy, conversation_id: str) -> Ruling:
    engine, directive = request.engine, rule.directive
    notices = rule.notices(request, policy, conversation_id)
    attaches = rule.attach is _Attach.ALWAYS or (
        rule.attach is _Attach.IF_WANTED and engine.wants_conversation_id
    )
    if attaches and not conversation_id:
        attaches, notices = False, (*notices, tokens.NO_CONVERSATION_ID)
    elif attaches and not engine.dialect.carries_conversation_id:
        attaches, notices = False, (tokens.DIALECT_CANNOT_CARRY_ID, *notices)
        if engine.adp_router is AdpRouter.CONVERSATION:
            directive = _FORWARD
    return Ruling(directive, attaches, notices)


def _shadow(ruling: Ruling) -> Ruling:
    would = [_WOULD[ruling.directive]]
    if ruling.attaches_id:
        would.append(tokens.WOULD_ATTACH_ID)
    return Ruling(_FORWARD, False, (tokens.MODE_SHADOW, *would, *ruling.notices))
