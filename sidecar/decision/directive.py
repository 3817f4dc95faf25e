"""What to do with the attention-DP rank, and whether to attach the id: the first rule that matches.

`_GATES` and `_TABLE` are the table of the design, row by row. A row that places leaves the rank to
`placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from sidecar.model import (
    AdpRouter,
    EngineDialect,
    Query,
    RankDirective,
    RankSource,
    RequestKind,
    RuleTrace,
)
from sidecar.policy.compiled import CompiledPolicy

ROLLOUT_BUCKETS = 10_000
MAX_PLACED_RANKS = 1_024
"""More ranks than any engine has; bounds what a wrong `dp_size` can cost."""

_FORWARD, _WITHHOLD, _PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
_CARRIES_ID = frozenset({EngineDialect.DISAGGREGATED_PARAMS, EngineDialect.CONVERSATION_PARAMS})
_ENGINE_CHOOSES = frozenset({RankSource.UNSPECIFIED, RankSource.ENGINE})


class _Attach(Enum):
    NEVER = 0
    IF_WANTED = 1
    ALWAYS = 2


_Condition: TypeAlias = Callable[[Query, CompiledPolicy, str], bool]
_Notices: TypeAlias = Callable[[Query, CompiledPolicy, str], tuple[str, ...]]


class Ruling(NamedTuple):
    """What the rules say about one request."""

    directive: RankDirective
    attaches_id: bool
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    matches: _Condition
    directive: RankDirective
    attach: _Attach
    notices: _Notices = lambda _query, _policy, _id: ()


def _say(notice: str) -> _Notices:
    return lambda _query, _policy, _id: (notice,)


def is_in_rollout(key: str, buckets: int) -> bool:
    """Tells whether a key is among the first `buckets` of 10,000; one without a name never is."""
    if buckets >= ROLLOUT_BUCKETS:
        return True
    digest = blake2b(key.encode(), digest_size=8, person=b"rh1-rollout").digest()
    return bool(key) and int.from_bytes(digest, "big") % ROLLOUT_BUCKETS < buckets


def _conversation_router(*sources: RankSource) -> _Condition:
    chosen = frozenset(sources)
    return lambda query, _policy, conversation_id: (
        query.engine.adp_router is AdpRouter.CONVERSATION
        and bool(conversation_id)
        and query.engine.rank_source in chosen
    )


_sidecar_with_conversation_router = _conversation_router(RankSource.SIDECAR)


def _records_sidecar_rank(query: Query, policy: CompiledPolicy, conversation_id: str) -> bool:
    return (
        query.engine.records_first_rank
        and 0 < query.engine.dp_size <= MAX_PLACED_RANKS
        and _sidecar_with_conversation_router(query, policy, conversation_id)
    )


def _can_place(query: Query, policy: CompiledPolicy, _conversation_id: str) -> bool:
    return query.engine.rank_source is RankSource.SIDECAR and not _why_not_placed(query, policy)


def _why_not_placed(query: Query, policy: CompiledPolicy) -> tuple[str, ...]:
    engine = query.engine
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE:
        return ("kv-cache-router-places",)
    is_pinning = engine.adp_router is AdpRouter.CONVERSATION
    reasons: list[str] = []
    if is_pinning and not engine.records_first_rank:
        reasons.append("first-rank-not-recorded")
    if not is_pinning and query.phase not in policy.placement_phases:
        reasons.append("placement-phase-off")
    if engine.dp_size == 0:
        reasons.append("dp-size-unknown")
    elif engine.dp_size > MAX_PLACED_RANKS:
        reasons.append("dp-size-too-large")
    if not is_pinning and query.router_rank is not None and not policy.places_always:
        reasons.append("router-rank-kept")
    return tuple(reasons)


def _name_idle_features(query: Query, policy: CompiledPolicy, conversation_id: str) -> tuple[str, ...]:
    engine = query.engine
    if engine.rank_source is RankSource.SIDECAR:
        return _why_not_placed(query, policy)
    if engine.adp_router is AdpRouter.KV_CACHE_AWARE:
        is_bypassed = query.router_rank is not None and engine.rank_source is RankSource.UNSPECIFIED
        return ("rank-bypasses-kv-cache-router",) if is_bypassed else ()
    notices: tuple[str, ...] = ()
    if conversation_id:
        if engine.adp_router is not AdpRouter.DEFAULT:
            notices = ("adp-router-unknown",)
        elif engine.dialect not in _CARRIES_ID and not engine.wants_conversation_id:
            # Configuring its router would not help; an id that is wanted says so by itself.
            notices = ("dialect-cannot-carry-id",)
        else:
            notices = ("router-pins-nothing",)
    if engine.rank_source is RankSource.ENGINE and query.router_rank is not None:
        notices = (*notices, "router-rank-kept")
    return notices


_GATES = (
    _Rule(
        "unknown-enum",
        lambda query, _policy, _id: bool(query.unknown_enums),
        _FORWARD,
        _Attach.NEVER,
        lambda query, _policy, _id: tuple(f"unknown-enum:{path}" for path in query.unknown_enums),
    ),
    _Rule(
        "kind-not-normal",
        lambda query, _policy, _id: query.kind in (RequestKind.HEALTH_CHECK, RequestKind.WARMUP),
        _FORWARD,
        _Attach.NEVER,
        _say("kind-not-normal"),
    ),
    _Rule("mode-off", lambda _query, policy, _id: policy.is_off, _FORWARD, _Attach.NEVER, _say("mode-off")),
    _Rule(
        "outside-rollout",
        lambda query, policy, conversation_id: (
            not is_in_rollout(conversation_id or query.request_id, policy.rollout_buckets)
        ),
        _FORWARD,
        _Attach.NEVER,
        _say("outside-rollout"),
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
        lambda query, _policy, conversation_id: (
            query.engine.adp_router is AdpRouter.CONVERSATION and not conversation_id
        ),
        _FORWARD,
        _Attach.NEVER,
        _say("no-conversation-id"),
    ),
    # That router probes each rank's cache, which an explicit rank bypasses.
    _Rule(
        "kv-cache-router-engine-rank",
        lambda query, _policy, _id: (
            query.engine.adp_router is AdpRouter.KV_CACHE_AWARE
            and query.engine.rank_source is RankSource.ENGINE
        ),
        _WITHHOLD,
        _Attach.IF_WANTED,
    ),
    _Rule("sidecar-places", _can_place, _PLACE, _Attach.IF_WANTED),
    _Rule("otherwise", lambda _query, _policy, _id: True, _FORWARD, _Attach.IF_WANTED, _name_idle_features),
)


def rule_on(
    query: Query, policy: CompiledPolicy, conversation_id: str, tried: list[RuleTrace] | None = None
) -> Ruling:
    """Returns what the first matching rule says.

    Args:
        query: the request.
        policy: the policy in force.
        conversation_id: the request's conversation; empty for none.
        tried: receives every rule that was tried, if given.
    """
    gate = _find_match(_GATES, query, policy, conversation_id, tried)
    if gate is not None:
        return _apply(gate, query, policy, conversation_id)
    if tried is not None:
        tried.append(RuleTrace("mode-shadow", policy.is_shadow))
    row = _find_match(_TABLE, query, policy, conversation_id, tried) or _TABLE[-1]
    ruling = _apply(row, query, policy, conversation_id)
    return _shadow(ruling) if policy.is_shadow else ruling


def _find_match(
    rules: Sequence[_Rule],
    query: Query,
    policy: CompiledPolicy,
    conversation_id: str,
    tried: list[RuleTrace] | None,
) -> _Rule | None:
    for rule in rules:
        matched = rule.matches(query, policy, conversation_id)
        if tried is not None:
            tried.append(RuleTrace(rule.name, matched))
        if matched:
            return rule
    return None


def _apply(rule: _Rule, query: Query, policy: CompiledPolicy, conversation_id: str) -> Ruling:
    engine, directive = query.engine, rule.directive
    notices = rule.notices(query, policy, conversation_id)
    attaches = rule.attach is _Attach.ALWAYS or (
        rule.attach is _Attach.IF_WANTED and engine.wants_conversation_id
    )
    if attaches and not conversation_id:
        attaches, notices = False, (*notices, "no-conversation-id")
    elif attaches and engine.dialect not in _CARRIES_ID:
        attaches, notices = False, ("dialect-cannot-carry-id", *notices)
        if engine.adp_router is AdpRouter.CONVERSATION:
            directive = _FORWARD
    return Ruling(directive, attaches, notices)


def _shadow(ruling: Ruling) -> Ruling:
    would = [f"would-{ruling.directive.name.lower()}"]
    if ruling.attaches_id:
        would.append("would-attach-id")
    return Ruling(_FORWARD, False, ("mode-shadow", *would, *ruling.notices))
