"""Which values can name a conversation at all."""

from __future__ import annotations

import re
from base64 import b64decode

_PLACEHOLDERS = frozenset({"null", "none", "undefined", "n/a", "unknown", "-"})

# AIBrix hands out `address:port` of a worker in base64, under the name `x-session-id`.
# Source: vllm-project/aibrix#2484. The longest is an IPv6 address with a port of five digits.
_BASE64_ENDPOINT = re.compile("[A-Za-z0-9+/]{10,63}={0,2}")
_ENDPOINT = re.compile(rb"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:]{2,45}\]):[0-9]{1,5}")


def explain_unusable(session_id: str) -> str:
    """Returns why a trimmed value names no conversation, as a token; empty if it may."""
    if not session_id:
        return "blank"
    return "placeholder" if session_id.lower() in _PLACEHOLDERS else ""


def is_endpoint_token(value: str) -> bool:
    """Tells whether a value is a worker's address, which all conversations there share."""
    if len(value) % 4 or not _BASE64_ENDPOINT.fullmatch(value):
        return False
    try:
        return bool(_ENDPOINT.fullmatch(b64decode(value, validate=True)))
    except ValueError:
        return False
