"""Conversation ids: a pure function of tenant, session id and the identity policy.

docs/contract.md states the rule with test vectors; a change of it needs a new prefix.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from sidecar.model import ConversationHash, ConversationId, IdScope

MAX_VERBATIM_BYTES = 256
MIN_UNSCOPED_BYTES = 16
DERIVED_PREFIX = "rh1-"

# A list of its own, since the Unicode tables differ between Python versions and ids must not.
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def make_conversation_id(
    session_id: str, tenant: str, scope: IdScope, *, derive_always: bool
) -> ConversationId:
    """Returns the session id itself where that is safe, else an id derived from it.

    Args:
        session_id: usable and trimmed.
        tenant: whose session it is; empty for nobody's. Ignored with `IdScope.OFF`.
        scope: which session ids of a tenant are derived.
        derive_always: never returns a session id as it came.
    """
    if scope is IdScope.OFF:
        tenant = ""
    size = len(session_id) if session_id.isascii() else len(session_id.encode())
    if (
        derive_always
        or size > MAX_VERBATIM_BYTES
        or session_id.startswith(DERIVED_PREFIX)
        or (tenant and (scope is IdScope.ALL or size < MIN_UNSCOPED_BYTES))
        or _CONTROL_CHARACTER.search(session_id)
    ):
        return _derive(session_id, tenant)
    return ConversationId(session_id)


def hash_conversation(conversation_id: ConversationId) -> ConversationHash:
    """Returns the name that stands for a conversation in logs."""
    digest = blake2b(conversation_id.encode(), digest_size=8, person=b"rh1-log")
    return ConversationHash(digest.hexdigest())


def _derive(session_id: str, tenant: str) -> ConversationId:
    digest = blake2b(digest_size=16, person=b"rh1")
    for part in (tenant.encode(), session_id.encode()):
        digest.update(len(part).to_bytes(4, "big") + part)
    return ConversationId(DERIVED_PREFIX + digest.hexdigest())
