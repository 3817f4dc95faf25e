"""The reasons that a client gives where it did not do as answered; docs/reference.md explains them."""

from __future__ import annotations

KNOWN_REASONS = frozenset(
    {
        "cancelled-while-asking",
        "connection-lost",
        "connection-refused",
        "connection-timed-out",
        "dialect-cannot-carry-id",
        "engine-refused-id",
        "engine-refused-schedule",
        "given-rank-out-of-range",
        "no-disaggregated-params",
        "not-grpc",
        "permission-denied",
        "placed-rank-out-of-range",
        "sidecar-draining",
        "sidecar-gave-no-answer",
        "sidecar-late",
        "socket-missing",
        "stream-ended",
        "tensorrt-llm-not-importable",
        "too-many-unanswered",
        "unresponsive",
    }
)
_GRPC_PREFIX = "grpc-"
_OTHER = "other"


def label_reason(reason: str) -> str:
    """Returns a reason as the label of a counter; one that no client of this version gives is `other`."""
    if reason in KNOWN_REASONS:
        return reason
    return "grpc" if reason.startswith(_GRPC_PREFIX) else _OTHER
