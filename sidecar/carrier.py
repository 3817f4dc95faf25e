"""The identity carriers: where a request can hold the name of its conversation.

A header carrier is one row of `_HEADER_ROWS`. Reading a carrier does not judge its value; `identity` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.model import Identity, IdentitySource

FINAL_HEADER = "x-dynamo-session-final"
TENANT_HEADER = "x-tenant-id"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a request holds in one carrier, untrimmed."""

    name: str
    """The field that was read, as in `source_detail`."""
    session_id: str
    parent_id: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class Carrier:
    """One place where a session id can be."""

    key: str
    """Its name in the policy's order."""
    name: str
    """Its name in a trace where the request has none."""
    source: IdentitySource
    read: Callable[[Identity, Mapping[str, str]], Reading | None]
    """Takes the carriers and the headers by lower-case name; None if the request has no such carrier."""
    header: str = ""
    """The header that it reads, in lower case; empty for a structured carrier."""
    parent_header: str = ""


def _read_conversation_id(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    return Reading("conversation_id", identity.conversation_id) if identity.conversation_id else None


def _read_agent_context(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    context = identity.agent_context
    if context is None:
        return None
    # With a trajectory `session_id` is the run, shared by a whole tree of agents. So an unusable
    # trajectory makes the carrier unusable; it does not fall back to the run.
    if context.trajectory_id:
        name, session_id = "agent_context.trajectory_id", context.trajectory_id
        return Reading(name, session_id, context.parent_trajectory_id, context.session_final)
    if context.session_id:
        name, session_id = "agent_context.session_id", context.session_id
        return Reading(name, session_id, context.parent_session_id, context.session_final)
    return None


def _read_session_control(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    control = identity.session_control
    if control is None or not control.session_id:
        return None
    return Reading("session_control.session_id", control.session_id, final=control.action == "close")


def _make_header_carrier(header: str, parent_header: str) -> Carrier:
    name = f"header:{header}"

    def read(_identity: Identity, headers: Mapping[str, str]) -> Reading | None:
        value = headers.get(header)
        return None if value is None else Reading(name, value, headers.get(parent_header, ""))

    return Carrier(name, name, IdentitySource.HEADER, read, header, parent_header)


_STRUCTURED = (
    Carrier("conversation_id", "conversation_id", IdentitySource.CONVERSATION_ID, _read_conversation_id),
    Carrier("agent_context", "agent_context.session_id", IdentitySource.AGENT_CONTEXT, _read_agent_context),
    Carrier(
        "session_control",
        "session_control.session_id",
        IdentitySource.SESSION_CONTROL,
        _read_session_control,
    ),
)

# The session header and the header that names the parent's session.
_HEADER_ROWS = (
    ("x-dynamo-session-id", "x-dynamo-parent-session-id"),
    ("x-session-id", "x-parent-session-id"),
)

CARRIERS: Mapping[str, Carrier] = {
    carrier.key: carrier for carrier in (*_STRUCTURED, *(_make_header_carrier(*row) for row in _HEADER_ROWS))
}
"""Every carrier by its key, in the default order."""


def fold_header_names(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the headers by lower-case name.

    Where two spellings of one name arrive, the spelling that sorts first wins, so that the result does
    not depend on the order of the map.
    """
    folded = {name.lower(): value for name, value in headers.items()}
    if len(folded) != len(headers):
        folded = {name.lower(): headers[name] for name in sorted(headers, reverse=True)}
    return folded
