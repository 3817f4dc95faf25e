"""Compares a decision with its vector."""

from __future__ import annotations

from collections.abc import Iterator

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.conformance.vector import Vector


def list_differences(vector: Vector, decision: service_pb2.EnrichResponse) -> list[str]:
    """Returns the differences between a decision and its vector's `expect`; empty if it conforms."""
    return list(_compare(vector, decision))


def _compare(vector: Vector, decision: service_pb2.EnrichResponse) -> Iterator[str]:
    expect = vector.expect
    conversation_id = decision.hints.conversation_id or None
    affinity_key = decision.hints.affinity_key or None
    compared: list[tuple[str, object, object]] = [
        ("source_detail", decision.source_detail, expect["source_detail"]),
        ("conversation_id", conversation_id, expect["conversation_id"]),
        ("affinity_key", affinity_key, expect.get("affinity_key", expect["conversation_id"])),
    ]
    if "directive" in expect:
        directive = types_pb2.RankDirective.Name(decision.rank_directive).removeprefix("RANK_DIRECTIVE_")
        compared.append(("directive", directive.lower(), expect["directive"]))
    if "conversation_hash" in expect:
        compared.append(("conversation_hash", decision.conversation_hash, expect["conversation_hash"]))
    for field, got, wanted in compared:
        if got != wanted:
            yield f"{field}: {got!r} instead of {wanted!r}"
    for notice in expect.get("notices", ()):
        if notice not in decision.notices:
            yield f"notices: {notice} is missing"
    for notice in expect.get("absent_notices", ()):
        if notice in decision.notices:
            yield f"notices: {notice} is not expected"
