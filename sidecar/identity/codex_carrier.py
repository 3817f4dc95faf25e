"""Codex: the thread is the conversation, the session is the tree of agents that it belongs to.

Sources: Dynamo `agents.rs` at 004e2c5 (thread and parent thread), Soju06/codex-lb#1703 (the session is
shared by all sub-agents), ranxianglei/billion-context#317 (the metadata can belong to another thread).
"""

from __future__ import annotations

from collections.abc import Mapping

from routing_hints.vocabulary import IdentitySource
from sidecar.identity.carrier import Carrier, Fields, Reading, read_object, take_text
from sidecar.model import Identity

_PARENT_HEADER = "x-codex-parent-thread-id"
_METADATA_HEADER = "x-codex-turn-metadata"
# Older releases spell the names with an underscore; some proxies drop such headers.
_THREAD_HEADERS = ("thread-id", "thread_id")
_SESSION_HEADERS = ("session-id", "session_id")


def _read(_identity: Identity, headers: Mapping[str, str]) -> Reading | None:
    for header in _THREAD_HEADERS:
        thread_id = headers.get(header, "")
        if thread_id.strip():
            return Reading(f"header:{header}", thread_id, _find_parent(thread_id, headers))
    blank = next((header for header in _THREAD_HEADERS if header in headers), None)
    return Reading(f"header:{blank}", "") if blank else None


def _find_parent(thread_id: str, headers: Mapping[str, str]) -> str:
    """Returns the parent thread's id, else the session id of the tree, else an empty string."""
    parent_id = headers.get(_PARENT_HEADER, "")
    if parent_id.strip():
        return parent_id
    metadata = headers.get(_METADATA_HEADER)
    if metadata is not None:
        parent_id = _read_metadata_parent(metadata, thread_id.strip())
        if parent_id.strip():
            return parent_id
    for header in _SESSION_HEADERS:
        session_id = headers.get(header, "")
        if session_id.strip():
            return session_id
    return ""


def _read_metadata_parent(text: str, thread_id: str) -> str:
    metadata = read_object(text)
    # A proxy or a resumed client can send the metadata of another thread.
    return take_text(metadata.get("parent_thread_id")) if metadata.get("thread_id") == thread_id else ""


CODEX = Carrier(
    "codex",
    "header:thread-id",
    IdentitySource.HEADER,
    _read,
    Fields(frozenset(_THREAD_HEADERS)),
    Fields(
        headers=frozenset({_PARENT_HEADER, *_SESSION_HEADERS}),
        per_request_headers=frozenset({_METADATA_HEADER}),
    ),
)
