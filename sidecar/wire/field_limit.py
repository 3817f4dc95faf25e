"""Checks of the contract's documented limits.

Nothing here puts a value of a request into an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message

from routing_hints.limits import (
    MAX_CARRIER_BYTES,
    MAX_ENTRIES,
    MAX_ID_BYTES,
    MAX_MODEL_BYTES,
    MAX_VALUE_BYTES,
)
from routing_hints.v1 import service_pb2

REQUEST_LIMITS = (
    ("request_id", MAX_ID_BYTES),
    ("worker_id", MAX_ID_BYTES),
    ("engine_instance", MAX_ID_BYTES),
    ("model", MAX_MODEL_BYTES),
    ("tenant", MAX_VALUE_BYTES),
    ("traceparent", MAX_ID_BYTES),
)
_AGENT_CONTEXT_LIMITS = tuple(
    (name, MAX_VALUE_BYTES)
    for name in ("session_id", "parent_session_id", "trajectory_id", "parent_trajectory_id")
)
_SESSION_CONTROL_LIMITS = (("session_id", MAX_VALUE_BYTES), ("action", MAX_ID_BYTES))
ENGINE_LIMITS = (("instance_id", MAX_ID_BYTES), ("version", MAX_ID_BYTES))
FINISH_LIMITS = (
    ("request_id", MAX_ID_BYTES),
    ("decision_id", MAX_ID_BYTES),
    ("local_reason", MAX_ID_BYTES),
)
HELLO_LIMITS = (("worker_id", MAX_ID_BYTES), ("client_version", MAX_ID_BYTES))

SHORT_BYTES = min(MAX_ID_BYTES, MAX_ENTRIES)
"""No string or map of a message up to this size breaks a limit, and most messages are that short."""


class FieldError(ValueError):
    """A field breaks its documented range.

    Attributes:
        field: the field's path, such as `hints.dp_rank`.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


def check_request(message: service_pb2.EnrichRequest) -> None:
    """Raises FieldError where a string or a map of a request is too long."""
    check_strings(message, REQUEST_LIMITS)
    identity = message.identity
    if identity.ByteSize() > MAX_CARRIER_BYTES:
        raise FieldError("identity", f"is longer than {MAX_CARRIER_BYTES} bytes")
    check_size(identity.conversation_id, MAX_VALUE_BYTES, "identity.conversation_id")
    check_strings(identity.agent_context, _AGENT_CONTEXT_LIMITS, "identity.agent_context.")
    check_strings(identity.session_control, _SESSION_CONTROL_LIMITS, "identity.session_control.")
    for path, entries in (
        ("identity.headers", identity.headers),
        ("identity.metadata", identity.metadata),
        ("identity.body", identity.body),
    ):
        check_count(len(entries), MAX_ENTRIES, path)
        for name, value in entries.items():
            check_size(name, MAX_ID_BYTES, path)
            check_size(value, MAX_VALUE_BYTES, path)
    check_count(len(identity.annotations), MAX_ENTRIES, "identity.annotations")
    for annotation in identity.annotations:
        check_size(annotation, MAX_VALUE_BYTES, "identity.annotations")


def check_strings(message: Message, limits: Iterable[tuple[str, int]], path: str = "") -> None:
    """Raises FieldError where one of the named fields has more bytes than it may."""
    for name, max_bytes in limits:
        value = getattr(message, name)
        if value:
            check_size(value, max_bytes, path + name)


def check_size(value: str, max_bytes: int, path: str) -> None:
    """Raises FieldError where a string has more bytes than it may."""
    size = len(value)
    if size > max_bytes or (not value.isascii() and len(value.encode()) > max_bytes):
        raise FieldError(path, f"is longer than {max_bytes} bytes")


def check_count(count: int, max_entries: int, path: str) -> None:
    """Raises FieldError where there are more entries than there may be."""
    if count > max_entries:
        raise FieldError(path, f"has more than {max_entries} entries")


def check_rank(rank: int, dp_size: int, path: str) -> None:
    """Raises FieldError where the engine does not have a rank; a `dp_size` of 0 is unknown."""
    if dp_size and rank >= dp_size:
        raise FieldError(path, "must be less than engine.dp_size")
