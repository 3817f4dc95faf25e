"""A decision to place, before and after placement has chosen the rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.vocabulary import (
    AdpRouter,
    EngineDialect,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
)
from sidecar.decision.decide import apply_placement, decide
from sidecar.model import AgentContext, Decision, Engine, Identity, PlacementKey, Request
from tests.support.policies import compile_yaml

NEW, RETAINED, MOVED, NONE = (
    PlacementState.NEW,
    PlacementState.RETAINED,
    PlacementState.MOVED,
    PlacementState.NONE,
)
PLACE, WITHHOLD = RankDirective.PLACE, RankDirective.WITHHOLD

_BALANCING = Engine(
    dialect=EngineDialect.CONVERSATION_PARAMS,
    adp_router=AdpRouter.DEFAULT,
    rank_source=RankSource.SIDECAR,
    dp_size=4,
)
_RECORDING = replace(_BALANCING, adp_router=AdpRouter.CONVERSATION, records_first_rank=True)
_CHILD = Identity(agent_context=AgentContext("child-0123456789", "conv-7f3a"))


def _decide(engine: Engine, identity: Identity = _CHILD, policy: str = "") -> Decision:
    return decide(Request(Phase.PREFILL, identity=identity, engine=engine), compile_yaml(policy))


@pytest.mark.parametrize(
    ("engine", "placement_state", "directive", "rank"),
    [
        (_BALANCING, NEW, PLACE, 2),
        (_BALANCING, RETAINED, PLACE, 2),
        (_BALANCING, MOVED, PLACE, 2),
        (_BALANCING, NONE, PLACE, 2),
        (_RECORDING, NEW, PLACE, 2),
        (_RECORDING, RETAINED, WITHHOLD, None),
        (_RECORDING, MOVED, WITHHOLD, None),
    ],
)
def test_engine_that_records_the_first_rank_is_sent_that_one_only(
    engine: Engine, placement_state: PlacementState, directive: RankDirective, rank: int | None
) -> None:
    """Every turn is placed on an engine that pins nothing."""
    request = Request(Phase.PREFILL, engine=engine)
    applied = apply_placement(request, _decide(engine), 2, placement_state)
    assert (applied.directive, applied.dp_rank, applied.placement) == (directive, rank, placement_state)


def test_paused_placement_forwards_with_the_notice_placement_not_honored() -> None:
    request = Request(Phase.PREFILL, engine=_BALANCING)
    applied = apply_placement(request, _decide(_BALANCING), None, NONE)
    assert (applied.directive, applied.dp_rank) == (RankDirective.FORWARD, None)
    assert applied.notices[0] == "placement-not-honored"


@pytest.mark.parametrize(("subagents", "parent"), [("context", "7c5832ae00b4609f"), ("off", "")])
def test_child_is_placed_by_its_parent_where_the_policy_says_so(subagents: str, parent: str) -> None:
    """The engine needs no parameter for it, since the sidecar places; the key has only hashes."""
    decision = _decide(_BALANCING, policy=f"identity: {{subagents: {subagents}}}")
    expected = PlacementKey(decision.conversation_hash, ConversationHash(parent), "")
    assert decision.placement_key == expected


def test_placement_key_of_a_request_without_identity_is_empty() -> None:
    """So it is placed by load."""
    empty = ConversationHash("")
    assert _decide(_BALANCING, Identity()).placement_key == PlacementKey(empty, empty, "")


def test_decision_that_does_not_place_has_no_placement_key() -> None:
    assert _decide(replace(_BALANCING, rank_source=RankSource.ENGINE)).placement_key is None


def test_placement_key_is_empty_where_the_carrier_is_suspended() -> None:
    """A conversation whose id will not come again is placed by load alone, as one without an id."""
    request = Request(Phase.PREFILL, identity=_CHILD, engine=_BALANCING)
    policy = compile_yaml("operational: {single_use_guard: enforce}")
    decision = decide(request, policy, {"agent_context.session_id"})
    empty = ConversationHash("")
    assert (decision.directive, decision.placement_key) == (PLACE, PlacementKey(empty, empty, ""))
