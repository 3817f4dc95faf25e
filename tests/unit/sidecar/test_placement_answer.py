"""What placement says becomes the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.decision.decide import apply_placement, decide
from sidecar.model import (
    AdpRouter,
    AgentContext,
    Answer,
    ConversationHash,
    Decision,
    Engine,
    EngineDialect,
    Identity,
    Phase,
    PlacementKey,
    Query,
    RankDirective,
    RankSource,
)
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy

NEW, RETAINED, MOVED, NONE = Decision.NEW, Decision.RETAINED, Decision.MOVED, Decision.NONE
PLACE, WITHHOLD = RankDirective.PLACE, RankDirective.WITHHOLD

_BALANCING = Engine(
    dialect=EngineDialect.CONVERSATION_PARAMS,
    adp_router=AdpRouter.DEFAULT,
    rank_source=RankSource.SIDECAR,
    dp_size=4,
)
_RECORDING = replace(_BALANCING, adp_router=AdpRouter.CONVERSATION, records_first_rank=True)
_CHILD = Identity(agent_context=AgentContext("child-0123456789", "conv-7f3a"))


def _answer(engine: Engine, identity: Identity = _CHILD, policy: str = "", **query: object) -> Answer:
    asked = Query(Phase.PREFILL, identity=identity, engine=engine, **query)  # type: ignore[arg-type]
    return decide(asked, compile_policy(parse_policy(policy)))


@pytest.mark.parametrize(
    ("engine", "decision", "directive", "rank"),
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
def test_an_engine_that_records_is_told_the_first_rank_only(
    engine: Engine, decision: Decision, directive: RankDirective, rank: int | None
) -> None:
    """Every turn is placed on an engine that pins nothing, the first one on an engine that does."""
    query = Query(Phase.PREFILL, engine=engine)
    applied = apply_placement(query, _answer(engine), 2, decision)
    assert (applied.directive, applied.dp_rank, applied.decision) == (directive, rank, decision)


def test_an_engine_that_does_not_follow_is_forwarded_to() -> None:
    """While placement pauses the router's rank stands, and the notice says why."""
    query = Query(Phase.PREFILL, engine=_BALANCING)
    applied = apply_placement(query, _answer(_BALANCING), None, NONE)
    assert (applied.directive, applied.dp_rank) == (RankDirective.FORWARD, None)
    assert applied.notices[0] == "placement-not-honoured"


@pytest.mark.parametrize(("subagents", "parent"), [("context", "7c5832ae00b4609f"), ("off", "")])
def test_a_child_is_placed_by_its_parent_where_the_policy_says_so(subagents: str, parent: str) -> None:
    """The engine needs no parameter for it, since the sidecar places; the key holds hashes alone."""
    answer = _answer(_BALANCING, policy=f"identity: {{subagents: {subagents}}}")
    expected = PlacementKey(answer.conversation_hash, ConversationHash(parent), "")
    assert answer.placement_key == expected


def test_without_an_identity_the_key_is_empty() -> None:
    """A request without a conversation is placed by load."""
    empty = ConversationHash("")
    assert _answer(_BALANCING, Identity()).placement_key == PlacementKey(empty, empty, "")


def test_only_what_is_placed_has_a_key() -> None:
    """Where the table has no say, it is not asked."""
    assert _answer(replace(_BALANCING, rank_source=RankSource.ENGINE)).placement_key is None


def test_ids_of_a_distrusted_carrier_bind_nothing() -> None:
    """A conversation whose id will not come again is placed by load alone, as one without an id."""
    query = Query(Phase.PREFILL, identity=_CHILD, engine=_BALANCING)
    policy = compile_policy(parse_policy("operational: {one_shot_guard: enforce}"))
    answer = decide(query, policy, {"agent_context.session_id"})
    nobody = ConversationHash("")
    assert (answer.directive, answer.placement_key) == (PLACE, PlacementKey(nobody, nobody, ""))
