"""What names a group of conversations that may be placed near each other, and never one of them."""

from __future__ import annotations

from sidecar.model import Identity

PROMPT_CACHE_KEY = "prompt_cache_key"


def find_prompt_cache_key(identity: Identity) -> str:
    """Returns OpenAI's `prompt_cache_key`; empty for none."""
    return identity.body.get(PROMPT_CACHE_KEY, "")


def find_agent_session(identity: Identity) -> str:
    """Returns `agent_context.session_id`; empty for none."""
    return identity.agent_context.session_id if identity.agent_context is not None else ""
