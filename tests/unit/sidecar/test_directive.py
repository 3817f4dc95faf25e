"""The directive table, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.decision.decide import decide, explain
from sidecar.decision.directive import is_in_rollout
from sidecar.model import (
    AdpRouter,
    Engine,
    EngineDialect,
    Identity,
    Phase,
    Query,
    RankDirective,
    RankSource,
    RequestKind,
)
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy

FORWARD, WITHHOLD, PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
ENGINE, ROUTER, SIDECAR = RankSource.ENGINE, RankSource.ROUTER, RankSource.SIDECAR
UNSET = RankSource.UNSPECIFIED

_PINNING = Engine(dialect=EngineDialect.CONVERSATION_PARAMS, adp_router=AdpRouter.CONVERSATION, dp_size=4)
_BALANCING = replace(_PINNING, adp_router=AdpRouter.DEFAULT)
_PROBING = replace(_PINNING, adp_router=AdpRouter.KV_CACHE_AWARE)
_UNREAD = replace(_PINNING, adp_router=AdpRouter.UNKNOWN)
_NAMED = Identity(conversation_id="conv-7f3a")
_NO_ID = Identity()


def _run(
    engine: Engine,
    identity: Identity = _NAMED,
    policy: str = "",
    **query: Any,
) -> tuple[str, RankDirective, str | None, tuple[str, ...]]:
    """Returns the rule that decided, the directive, the attached id and the notices."""
    asked = Query(query.pop("phase", Phase.PREFILL), identity=identity, engine=engine, **query)
    compiled = compile_policy(parse_policy(policy))
    answer = decide(asked, compiled)
    explanation = explain(asked, compiled)
    assert explanation.answer == answer
    *before, last = explanation.rules
    assert last.matched
    assert [rule.rule for rule in before if rule.matched] in ([], ["mode-shadow"])
    return last.rule, answer.directive, answer.conversation_id, answer.notices


@pytest.mark.parametrize(
    ("engine", "identity", "expected"),
    [
        # Router CONVERSATION with an id.
        (
            replace(_PINNING, rank_source=ENGINE),
            _NAMED,
            ("conversation-router-engine-rank", WITHHOLD, "conv-7f3a", ()),
        ),
        (_PINNING, _NAMED, ("conversation-router-engine-rank", WITHHOLD, "conv-7f3a", ())),
        (
            replace(_PINNING, dialect=EngineDialect.DISAGGREGATED_PARAMS),
            _NAMED,
            ("conversation-router-engine-rank", WITHHOLD, "conv-7f3a", ()),
        ),
        (
            replace(_PINNING, dialect=EngineDialect.RANK_ONLY),
            _NAMED,
            ("conversation-router-engine-rank", FORWARD, None, ("dialect-cannot-carry-id",)),
        ),
        (
            replace(_PINNING, dialect=EngineDialect.UNSPECIFIED),
            _NAMED,
            ("conversation-router-engine-rank", FORWARD, None, ("dialect-cannot-carry-id",)),
        ),
        (
            replace(_PINNING, rank_source=ROUTER),
            _NAMED,
            ("conversation-router-router-rank", FORWARD, "conv-7f3a", ()),
        ),
        (
            replace(_PINNING, rank_source=ROUTER, dialect=EngineDialect.RANK_ONLY),
            _NAMED,
            ("conversation-router-router-rank", FORWARD, None, ("dialect-cannot-carry-id",)),
        ),
        (
            replace(_PINNING, rank_source=SIDECAR, records_first_rank=True),
            _NAMED,
            ("conversation-router-sidecar-first-rank", PLACE, "conv-7f3a", ()),
        ),
        (
            replace(_PINNING, rank_source=SIDECAR, records_first_rank=True, dp_size=0),
            _NAMED,
            ("otherwise", FORWARD, None, ("dp-size-unknown",)),
        ),
        (
            replace(_PINNING, rank_source=SIDECAR),
            _NAMED,
            ("otherwise", FORWARD, None, ("first-rank-not-recorded",)),
        ),
        (
            replace(_PINNING, rank_source=SIDECAR, wants_conversation_id=True),
            _NAMED,
            ("otherwise", FORWARD, "conv-7f3a", ("first-rank-not-recorded",)),
        ),
        # Router CONVERSATION without an id.
        (_PINNING, _NO_ID, ("conversation-router-no-id", FORWARD, None, ("no-conversation-id",))),
        (
            replace(_PINNING, rank_source=ENGINE),
            _NO_ID,
            ("conversation-router-no-id", FORWARD, None, ("no-conversation-id",)),
        ),
        (
            replace(_PINNING, rank_source=SIDECAR, records_first_rank=True, wants_conversation_id=True),
            _NO_ID,
            ("conversation-router-no-id", FORWARD, None, ("no-conversation-id",)),
        ),
        # Router KV_CACHE_AWARE.
        (replace(_PROBING, rank_source=ENGINE), _NAMED, ("kv-cache-router-engine-rank", WITHHOLD, None, ())),
        (replace(_PROBING, rank_source=ENGINE), _NO_ID, ("kv-cache-router-engine-rank", WITHHOLD, None, ())),
        (
            replace(_PROBING, rank_source=ENGINE, wants_conversation_id=True),
            _NAMED,
            ("kv-cache-router-engine-rank", WITHHOLD, "conv-7f3a", ()),
        ),
        (
            replace(
                _PROBING, rank_source=ENGINE, wants_conversation_id=True, dialect=EngineDialect.RANK_ONLY
            ),
            _NAMED,
            ("kv-cache-router-engine-rank", WITHHOLD, None, ("dialect-cannot-carry-id",)),
        ),
        (
            replace(_PROBING, rank_source=ENGINE, wants_conversation_id=True),
            _NO_ID,
            ("kv-cache-router-engine-rank", WITHHOLD, None, ("no-conversation-id",)),
        ),
        (_PROBING, _NAMED, ("otherwise", FORWARD, None, ())),
        (replace(_PROBING, rank_source=ROUTER), _NAMED, ("otherwise", FORWARD, None, ())),
        (
            replace(_PROBING, rank_source=SIDECAR),
            _NAMED,
            ("otherwise", FORWARD, None, ("kv-cache-router-places",)),
        ),
        # Routers that pin nothing.
        (
            replace(_BALANCING, rank_source=SIDECAR),
            _NAMED,
            ("sidecar-places", PLACE, None, ()),
        ),
        (
            replace(_BALANCING, rank_source=SIDECAR),
            _NO_ID,
            ("sidecar-places", PLACE, None, ()),
        ),
        (
            replace(_UNREAD, rank_source=SIDECAR, wants_conversation_id=True),
            _NAMED,
            ("sidecar-places", PLACE, "conv-7f3a", ()),
        ),
        (
            replace(_BALANCING, rank_source=SIDECAR, dp_size=0),
            _NAMED,
            ("otherwise", FORWARD, None, ("dp-size-unknown",)),
        ),
        (
            replace(_BALANCING, rank_source=SIDECAR, dp_size=1_025),
            _NAMED,
            ("otherwise", FORWARD, None, ("dp-size-too-large",)),
        ),
        (
            replace(_BALANCING, rank_source=SIDECAR, adp_router=AdpRouter.UNSPECIFIED),
            _NO_ID,
            ("sidecar-places", PLACE, None, ()),
        ),
        (_BALANCING, _NO_ID, ("otherwise", FORWARD, None, ())),
        (
            replace(_BALANCING, rank_source=ENGINE),
            _NAMED,
            ("otherwise", FORWARD, None, ("router-pins-nothing",)),
        ),
        (_BALANCING, _NAMED, ("otherwise", FORWARD, None, ("router-pins-nothing",))),
        (
            replace(_BALANCING, dialect=EngineDialect.RANK_ONLY),
            _NAMED,
            ("otherwise", FORWARD, None, ("dialect-cannot-carry-id",)),
        ),
        (
            replace(_BALANCING, dialect=EngineDialect.RANK_ONLY, wants_conversation_id=True),
            _NAMED,
            ("otherwise", FORWARD, None, ("dialect-cannot-carry-id", "router-pins-nothing")),
        ),
        (_UNREAD, _NAMED, ("otherwise", FORWARD, None, ("adp-router-unknown",))),
        (Engine(), _NO_ID, ("otherwise", FORWARD, None, ())),
        (
            replace(_BALANCING, wants_conversation_id=True),
            _NAMED,
            ("otherwise", FORWARD, "conv-7f3a", ("router-pins-nothing",)),
        ),
        (
            replace(_BALANCING, wants_conversation_id=True),
            _NO_ID,
            ("otherwise", FORWARD, None, ("no-conversation-id",)),
        ),
    ],
)
def test_each_row_of_the_table(
    engine: Engine, identity: Identity, expected: tuple[str, RankDirective, str | None, tuple[str, ...]]
) -> None:
    """The first matching row says directive, id and notices."""
    assert _run(engine, identity) == expected


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (replace(_PROBING), ("otherwise", ("rank-bypasses-kv-cache-router",))),
        (replace(_PROBING, rank_source=ROUTER), ("otherwise", ())),
        (replace(_PROBING, rank_source=ENGINE), ("kv-cache-router-engine-rank", ())),
        (replace(_BALANCING, rank_source=SIDECAR), ("otherwise", ("router-rank-kept",))),
        (replace(_BALANCING, rank_source=ENGINE), ("otherwise", ("router-pins-nothing", "router-rank-kept"))),
        (_BALANCING, ("otherwise", ("router-pins-nothing",))),
        (replace(_BALANCING, rank_source=ROUTER), ("otherwise", ("router-pins-nothing",))),
        (replace(_PINNING, rank_source=ENGINE), ("conversation-router-engine-rank", ())),
    ],
)
def test_a_rank_of_the_router(engine: Engine, expected: tuple[str, tuple[str, ...]]) -> None:
    """Where the router sent a rank, a feature that it gets in the way of says so."""
    rule, _, _, notices = _run(engine, router_rank=1)
    assert (rule, notices) == expected


def test_the_operator_can_place_over_the_routers_rank() -> None:
    """With `when: always` the sidecar would place although the router sent a rank."""
    policy = "operational: {placement: {when: always}}"
    rule, *_ = _run(replace(_BALANCING, rank_source=SIDECAR), policy=policy, router_rank=1)
    assert rule == "sidecar-places"


def test_placement_is_off_on_decode() -> None:
    """By default the sidecar does not place on the decode leg."""
    assert _run(replace(_BALANCING, rank_source=SIDECAR), phase=Phase.DECODE) == (
        "otherwise",
        FORWARD,
        None,
        ("placement-phase-off",),
    )


def test_the_policy_switches_placement_by_phase() -> None:
    """Only the phases of the policy are placed on."""
    policy = "operational: {placement: {phases: [decode]}}"
    engine = replace(_BALANCING, rank_source=SIDECAR)
    rules = [_run(engine, policy=policy, phase=phase)[0] for phase in list(Phase)[1:]]
    assert rules == ["otherwise", "sidecar-places", "otherwise"]


@pytest.mark.parametrize("kind", [RequestKind.HEALTH_CHECK, RequestKind.WARMUP])
def test_requests_of_other_kinds_are_forwarded(kind: RequestKind) -> None:
    """A probe and a warm-up keep the router's rank and get no id."""
    assert _run(_PINNING, kind=kind) == ("kind-not-normal", FORWARD, None, ("kind-not-normal",))


def test_an_unset_kind_is_normal() -> None:
    """A request that does not say its kind is decided about."""
    assert _run(_PINNING, kind=RequestKind.UNSPECIFIED)[1] is WITHHOLD


def test_unknown_enums_are_forwarded() -> None:
    """Each unknown value is named, and nothing is decided on a guess."""
    fields = ("phase", "engine.dialect")
    assert _run(_PINNING, unknown_enums=fields) == (
        "unknown-enum",
        FORWARD,
        None,
        ("unknown-enum:phase", "unknown-enum:engine.dialect"),
    )


def test_mode_off_forwards() -> None:
    """With `mode: off` nothing is changed, and the notice says why."""
    assert _run(_PINNING, policy="operational: {mode: off}") == ("mode-off", FORWARD, None, ("mode-off",))


def test_mode_shadow_says_what_it_would_do() -> None:
    """A shadow decides, forwards, and tells directive and attachment."""
    assert _run(_PINNING, policy="operational: {mode: shadow}") == (
        "conversation-router-engine-rank",
        FORWARD,
        None,
        ("mode-shadow", "would-withhold", "would-attach-id"),
    )


def test_mode_shadow_keeps_the_rows_notices() -> None:
    """The row's own notices follow."""
    assert _run(_BALANCING, policy="operational: {mode: shadow}")[3] == (
        "mode-shadow",
        "would-forward",
        "router-pins-nothing",
    )


def test_mode_shadow_places_nothing() -> None:
    """A shadow says that it would place, and the table is not asked."""
    engine = replace(_BALANCING, rank_source=SIDECAR)
    assert _run(engine, policy="operational: {mode: shadow}") == (
        "sidecar-places",
        FORWARD,
        None,
        ("mode-shadow", "would-place"),
    )


def test_a_rollout_of_zero_forwards_everything() -> None:
    """With `rollout_percent: 0` no conversation is decided about."""
    assert _run(_PINNING, policy="operational: {rollout_percent: 0}") == (
        "outside-rollout",
        FORWARD,
        None,
        ("outside-rollout",),
    )


def test_a_rollout_goes_by_conversation() -> None:
    """Whether a conversation is in depends on its id alone, and about the given share is."""
    policy = "operational: {rollout_percent: 25}"
    inside = 0
    for number in range(400):
        identity = Identity(conversation_id=f"conversation-{number}")
        first = _run(_PINNING, identity, policy, request_id="1")[0]
        assert first == _run(_PINNING, identity, policy, request_id="2", phase=Phase.DECODE)[0]
        inside += first != "outside-rollout"
    assert 70 <= inside <= 130


def test_a_rollout_goes_by_request_where_there_is_no_conversation() -> None:
    """Both legs of an anonymous request are on one side; without any name it is outside."""
    policy = "operational: {rollout_percent: 50}"
    sides = set()
    for number in range(50):
        legs = {
            _run(_PINNING, _NO_ID, policy, request_id=str(number), phase=phase)[0]
            for phase in (Phase.PREFILL, Phase.DECODE)
        }
        assert len(legs) == 1
        sides |= legs
    assert sides == {"outside-rollout", "conversation-router-no-id"}
    policy = "operational: {rollout_percent: 99.99}"
    assert _run(_PINNING, _NO_ID, policy)[0] == "outside-rollout"


def test_the_rollout_hash_is_stable() -> None:
    """Buckets of known keys, computed with hashlib alone, do not change between releases."""
    bucket = 7821
    assert not is_in_rollout("conv-7f3a", bucket)
    assert is_in_rollout("conv-7f3a", bucket + 1)
