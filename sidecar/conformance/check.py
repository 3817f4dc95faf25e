"""Holds an answer against its vector."""

from __future__ import annotations

from collections.abc import Iterator

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.conformance.vector import Vector


def list_differences(vector: Vector, answer: service_pb2.EnrichResponse) -> list[str]:
    """Returns how an answer differs from what its vector expects; nothing if it conforms."""
    return list(_compare(vector, answer))


def _compare(vector: Vector, answer: service_pb2.EnrichResponse) -> Iterator[str]:
    expect = vector.expect
    conversation_id = answer.hints.conversation_id or None
    affinity_key = answer.hints.affinity_key or None
    compared: list[tuple[str, object, object]] = [
        ("source_detail", answer.source_detail, expect["source_detail"]),
        ("conversation_id", conversation_id, expect["conversation_id"]),
        ("affinity_key", affinity_key, expect.get("affinity_key", expect["conversation_id"])),
    ]
    if "directive" in expect:
        directive = types_pb2.RankDirective.Name(answer.rank_directive).removeprefix("RANK_DIRECTIVE_")
        compared.append(("directive", directive.lower(), expect["directive"]))
    if "conversation_hash" in expect:
        compared.append(("conversation_hash", answer.conversation_hash, expect["conversation_hash"]))
    for field, got, wanted in compared:
        if got != wanted:
            yield f"{field}: {got!r} instead of {wanted!r}"
    for notice in expect.get("notices", ()):
        if notice not in answer.notices:
            yield f"notices: {notice} is missing"
    for notice in expect.get("absent_notices", ()):
        if notice in answer.notices:
            yield f"notices: {notice} is not expected"
