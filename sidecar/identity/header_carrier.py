"""Carriers in HTTP headers: single headers, and the pairs of session and agent that harnesses send."""

from __future__ import annotations

import re
from collections.abc import Mapping

from routing_hints import tokens
from routing_hints.limits import MAX_ID_BYTES
from routing_hints.vocabulary import IdentitySource
from sidecar.identity.carrier import Carrier, Fields, Reading
from sidecar.model import Identity

# `token` of RFC 9110, section 5.6.2.
_TOKEN = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def make_header_carrier(header: str, parent_header: str = "") -> Carrier:
    """Returns the carrier of a header that names the conversation.

    Args:
        header: the header's name in lower case.
        parent_header: the header that names the parent's conversation, in lower case; empty for none.
    """
    name = f"header:{header}"

    def read(_identity: Identity, headers: Mapping[str, str]) -> Reading | None:
        value = headers.get(header)
        if value is None:
            return None
        return Reading(name, value, headers.get(parent_header, "") if parent_header else "")

    parents = frozenset({parent_header}) if parent_header else frozenset[str]()
    return Carrier(
        name, name, IdentitySource.HEADER, read, Fields(frozenset({header})), Fields(headers=parents)
    )


def make_agent_carrier(key: str, session_header: str, agent_header: str, parent_header: str = "") -> Carrier:
    """Returns the carrier of a harness that names its session and, for a sub-agent, also the agent.

    A sub-agent inherits the session's header, so an agent id, if present, is the conversation. Its parent is
    the parent agent, else the session. An agent id without a session names nothing, as in Dynamo.

    Args:
        key: the carrier's name in the policy's order.
        session_header: the header that names the session, in lower case.
        agent_header: the header that names the agent.
        parent_header: the header that names the parent agent; empty if the harness has none.
    """
    session_name, agent_name = f"header:{session_header}", f"header:{agent_header}"

    def read(_identity: Identity, headers: Mapping[str, str]) -> Reading | None:
        session_id = headers.get(session_header, "")
        agent_id = headers.get(agent_header, "")
        parent_id = headers.get(parent_header, "") if parent_header else ""
        if not agent_id.strip():
            return Reading(session_name, session_id, parent_id) if session_header in headers else None
        if not session_id.strip():
            return Reading(agent_name, agent_id, refusal=tokens.AGENT_WITHOUT_SESSION)
        if agent_id.strip() == session_id.strip():
            return Reading(session_name, session_id, parent_id)
        return Reading(agent_name, agent_id, parent_id if parent_id.strip() else session_id)

    parents = frozenset({parent_header}) if parent_header else frozenset[str]()
    return Carrier(
        key,
        session_name,
        IdentitySource.HEADER,
        read,
        Fields(frozenset({session_header, agent_header})),
        Fields(headers=parents),
    )


def check_header_name(name: str) -> str:
    """Returns the name in lower case.

    Raises:
        ValueError: it is not a valid header name; the message says why.
    """
    if not name:
        raise ValueError("is empty")
    if not _TOKEN.fullmatch(name):
        raise ValueError("is not a valid header name")
    if len(name) > MAX_ID_BYTES:
        raise ValueError(f"is longer than {MAX_ID_BYTES} bytes")
    return name.lower()
