"""The directive table, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routing_hints.vocabulary import AdpRouter, EngineDialect, Phase, RankDirective, RankSource, RequestKind
from sidecar.decision.decide import decide, explain
from sidecar.decision.directive import is_in_rollout
from sidecar.model import Engine, Identity, Request
from tests.support.policies import compile_yaml

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
    **request: Any,
) -> tuple[str, RankDirective, str | None, tuple[str, ...]]:
    """Returns the rule that decided, the directive, the attached id and the notices."""
    made = Request(request.pop("phase", Phase.PREFILL), identity=identity, engine=engine, **request)
    compiled = compile_yaml(policy)
    decision = decide(made, compiled)
    explanation = explain(made, compiled)
    assert explanation.decision == decision
    *before, last = explanation.rules
    assert last.matched
    assert [rule.rule for rule in before if rule.matched] in ([], ["mode-shadow"])
    return last.rule, decision.directive, decision.conversation_id, decision.notices


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
def test_row_of_the_table_sets_directive_id_and_notices(
    engine: Engine, identity: Identity, expected: tuple[str, RankDirective, str | None, tuple[str, ...]]
) -> None:
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
def test_notice_names_what_a_rank_of_the_router_keeps_from_acting(
    engine: Engine, expected: tuple[str, tuple[str, ...]]
) -> None:
    rule, _, _, notices = _run(engine, router_rank=1)
    assert (rule, notices) == expected


def test_placement_when_always_overrides_the_rank_of_the_router() -> None:
    policy = "operational: {placement: {when: always}}"
    rule, *_ = _run(replace(_BALANCING, rank_source=SIDECAR), policy=policy, router_rank=1)
    assert rule == "sidecar-places"


def test_sidecar_does_not_place_decode_by_default() -> None:
    assert _run(replace(_BALANCING, rank_source=SIDECAR), phase=Phase.DECODE) == (
        "otherwise",
        FORWARD,
        None,
        ("placement-phase-off",),
    )


def test_sidecar_places_only_the_phases_of_the_policy() -> None:
    policy = "operational: {placement: {phases: [decode]}}"
    engine = replace(_BALANCING, rank_source=SIDECAR)
    rules = [_run(engine, policy=policy, phase=phase)[0] for phase in list(Phase)[1:]]
    assert rules == ["otherwise", "sidecar-places", "otherwise"]


@pytest.mark.parametrize("kind", [RequestKind.HEALTH_CHECK, RequestKind.WARMUP])
def test_health_check_and_warmup_are_forwarded_without_an_id(kind: RequestKind) -> None:
    assert _run(_PINNING, kind=kind) == ("kind-not-normal", FORWARD, None, ("kind-not-normal",))


def test_unset_kind_is_decided_as_normal() -> None:
    assert _run(_PINNING, kind=RequestKind.UNSPECIFIED)[1] is WITHHOLD


def test_request_with_unknown_enum_values_is_forwarded_and_names_each() -> None:
    """Nothing is decided on a guess."""
    fields = ("phase", "engine.dialect")
    assert _run(_PINNING, unknown_enums=fields) == (
        "unknown-enum",
        FORWARD,
        None,
        ("unknown-enum:phase", "unknown-enum:engine.dialect"),
    )


def test_mode_off_forwards_with_its_notice() -> None:
    assert _run(_PINNING, policy="operational: {mode: off}") == ("mode-off", FORWARD, None, ("mode-off",))


def test_mode_shadow_forwards_and_says_what_mode_on_would_do() -> None:
    assert _run(_PINNING, policy="operational: {mode: shadow}") == (
        "conversation-router-engine-rank",
        FORWARD,
        None,
        ("mode-shadow", "would-withhold", "would-attach-id"),
    )


def test_mode_shadow_keeps_the_notices_of_the_row() -> None:
    assert _run(_BALANCING, policy="operational: {mode: shadow}")[3] == (
        "mode-shadow",
        "would-forward",
        "router-pins-nothing",
    )


def test_mode_shadow_says_that_it_would_place_and_does_not() -> None:
    engine = replace(_BALANCING, rank_source=SIDECAR)
    assert _run(engine, policy="operational: {mode: shadow}") == (
        "sidecar-places",
        FORWARD,
        None,
        ("mode-shadow", "would-place"),
    )


def test_rollout_of_zero_percent_forwards_everything() -> None:
    assert _run(_PINNING, policy="operational: {rollout_percent: 0}") == (
        "outside-rollout",
        FORWARD,
        None,
        ("outside-rollout",),
    )


def test_rollout_selects_conversations_by_their_id_alone_and_about_the_given_share() -> None:
    policy = "operational: {rollout_percent: 25}"
    inside = 0
    for number in range(400):
        identity = Identity(conversation_id=f"conversation-{number}")
        first = _run(_PINNING, identity, policy, request_id="1")[0]
        assert first == _run(_PINNING, identity, policy, request_id="2", phase=Phase.DECODE)[0]
        inside += first != "outside-rollout"
    assert 70 <= inside <= 130


def test_rollout_selects_requests_without_a_conversation_by_their_request_id() -> None:
    """So both phases of a request are on one side; one without a request id is outside."""
    policy = "operational: {rollout_percent: 50}"
    sides = set()
    for number in range(50):
        of_both_phases = {
            _run(_PINNING, _NO_ID, policy, request_id=str(number), phase=phase)[0]
            for phase in (Phase.PREFILL, Phase.DECODE)
        }
        assert len(of_both_phases) == 1
        sides |= of_both_phases
    assert sides == {"outside-rollout", "conversation-router-no-id"}
    policy = "operational: {rollout_percent: 99.99}"
    assert _run(_PINNING, _NO_ID, policy)[0] == "outside-rollout"


def test_rollout_bucket_of_a_key_does_not_change_between_releases() -> None:
    """Computed with hashlib alone."""
    bucket = 7821
    assert not is_in_rollout("conv-7f3a", bucket)
    assert is_in_rollout("conv-7f3a", bucket + 1)
