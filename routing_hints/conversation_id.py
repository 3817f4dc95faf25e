"""Conversation ids: which session ids can name a conversation, and what it is called then.

A pure function of tenant, session id and the identity policy, so that every phase, sidecar and restart gives
the same id. docs/contract.md states the rule with test vectors; a change of it needs a new prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NewType

from routing_hints import tokens
from routing_hints.vocabulary import IdScope

ConversationId = NewType("ConversationId", str)
"""Names one linear history to the engine; personal data. The empty one stands for none."""

ConversationHash = NewType("ConversationHash", str)
"""Names a conversation in logs and metrics; 16 hexadecimal digits. The empty one stands for none."""

MAX_VERBATIM_BYTES = 256
MIN_UNSCOPED_BYTES = 16
"""Shorter ids of different tenants are likely to be equal by chance."""
DERIVED_PREFIX = "rh1-"

_PLACEHOLDERS = frozenset({"null", "none", "undefined", "n/a", "unknown", "-"})
# A list of its own, since the Unicode tables differ between Python versions and ids must not.
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class IdForm(Enum):
    """How a session id becomes a conversation id."""

    VERBATIM = "verbatim"
    """As it came, where that is safe."""
    DERIVE_ALWAYS = "derive_always"
    UNCHANGED = "unchanged"
    """As it came, in any case."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The part of the policy that ids depend on."""

    scope: IdScope = IdScope.WEAK
    """Which session ids of a tenant are derived."""
    form: IdForm = IdForm.VERBATIM


def explain_unusable(session_id: str) -> str:
    """Returns why a trimmed value names no conversation, as a token; empty if it may."""
    if not session_id:
        return tokens.BLANK
    return tokens.PLACEHOLDER if session_id.lower() in _PLACEHOLDERS else ""


def make_conversation_id(session_id: str, tenant: str, naming: Naming, run_id: str = "") -> ConversationId:
    """Returns the session id itself where that is safe, else an id derived from it.

    Args:
        session_id: usable and trimmed.
        tenant: whose session it is; empty for nobody's. Ignored with `IdScope.OFF`.
        naming: the policy's.
        run_id: what the session id is unique within; empty where it stands for itself.
    """
    if not explain_derivation(session_id, tenant, naming, run_id):
        return ConversationId(session_id)
    if naming.scope is IdScope.OFF:
        tenant = ""
    return _derive(tenant, run_id, session_id) if run_id else _derive(tenant, session_id)


def explain_derivation(session_id: str, tenant: str, naming: Naming, run_id: str = "") -> str:
    """Returns why the id is derived, as a token; empty if the session id is the conversation id."""
    if run_id:
        return tokens.DERIVED_WITHIN_RUN
    if naming.form is not IdForm.VERBATIM:
        return tokens.DERIVED_ALWAYS if naming.form is IdForm.DERIVE_ALWAYS else ""
    size = len(session_id) if session_id.isascii() else len(session_id.encode())
    if size > MAX_VERBATIM_BYTES:
        return tokens.DERIVED_TOO_LONG
    if session_id.startswith(DERIVED_PREFIX):
        return tokens.DERIVED_RESERVED_PREFIX
    if tenant and naming.scope is not IdScope.OFF:
        if naming.scope is IdScope.ALL:
            return tokens.DERIVED_TENANT
        if size < MIN_UNSCOPED_BYTES:
            return tokens.DERIVED_TENANT_AND_SHORT
    return tokens.DERIVED_CONTROL_CHARACTER if _CONTROL_CHARACTER.search(session_id) else ""


def hash_conversation(conversation_id: str) -> ConversationHash:
    """Returns the name that stands for a conversation in logs."""
    digest = blake2b(conversation_id.encode(), digest_size=8, person=b"rh1-log")
    return ConversationHash(digest.hexdigest())


def _derive(*parts: str) -> ConversationId:
    digest = blake2b(digest_size=16, person=b"rh1")
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return ConversationId(DERIVED_PREFIX + digest.hexdigest())
