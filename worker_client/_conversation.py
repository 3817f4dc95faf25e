"""The parts of the contract's identity rules that a client needs while the sidecar is silent.

docs/contract.md is the rule; the sidecar has its own, complete implementation, and tests hold both against
the same vectors.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from worker_client._model import IdScope

MAX_VERBATIM_BYTES = 256
WEAK_ID_BYTES = 16
_PLACEHOLDERS = frozenset({"null", "none", "undefined", "n/a", "unknown", "-"})
# C0, DEL, C1 and the two separators: a fixed list, since Unicode tables differ between Pythons.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def usable_id(value: str) -> str:
    """Returns a session id as it is compared, trimmed; empty where it can't name a conversation."""
    trimmed = value.strip()
    return "" if trimmed.lower() in _PLACEHOLDERS else trimmed


def is_verbatim(session_id: str, tenant: str, scope: IdScope) -> bool:
    """Returns whether the sidecar would pass `session_id` as the conversation id, unchanged."""
    size = len(session_id.encode())
    if size > MAX_VERBATIM_BYTES or session_id.startswith("rh1-") or _CONTROL.search(session_id):
        return False
    if not tenant or scope is IdScope.OFF:
        return True
    return scope is not IdScope.ALL and size >= WEAK_ID_BYTES


def hash_conversation(conversation_id: str) -> str:
    """Returns the name of a conversation in logs, as the sidecar would: 16 hex digits."""
    return blake2b(conversation_id.encode(), digest_size=8, person=b"rh1-log").hexdigest()
