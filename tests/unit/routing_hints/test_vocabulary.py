"""What follows from the values of the contract's enums."""

from __future__ import annotations

from routing_hints.vocabulary import AdpRouter, EngineDialect, RankSource, RequestKind


def test_unset_kind_is_normal() -> None:
    assert [kind.name for kind in RequestKind if kind.is_normal] == ["UNSPECIFIED", "NORMAL"]


def test_unset_dialect_carries_no_conversation_id() -> None:
    """It is taken as RANK_ONLY."""
    carrying = [dialect.name for dialect in EngineDialect if dialect.carries_conversation_id]
    assert carrying == ["DISAGGREGATED_PARAMS", "CONVERSATION_PARAMS"]


def test_unset_router_is_unknown() -> None:
    assert [router.name for router in AdpRouter if not router.is_known] == ["UNSPECIFIED", "UNKNOWN"]


def test_unset_rank_source_lets_a_pinning_engine_choose() -> None:
    choosing = [source.name for source in RankSource if source.lets_pinning_engine_choose]
    assert choosing == ["UNSPECIFIED", "ENGINE"]
