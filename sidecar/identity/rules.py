"""The identity part of the policy, compiled for `resolution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from routing_hints.conversation_id import Naming
from routing_hints.vocabulary import Phase
from sidecar.identity.carrier import Carrier
from sidecar.model import Identity

PROMPT_CACHE_KEY = "prompt_cache_key"


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """Which carriers are read, in order, and how their values become conversation ids."""

    carriers: tuple[Carrier, ...]
    headerless_carriers: tuple[Carrier, ...]
    """Those that read no header: enough for a request without any of `carrier_headers`."""
    carrier_headers: frozenset[str]
    """The headers that carriers read for an id, in lower case."""
    accepts_placeholders: bool
    """Whether a placeholder names a conversation, as in TensorRT-LLM's own HTTP server."""
    naming: Naming
    parent_fallbacks: tuple[Callable[[Identity], str], ...]
    """Return the parent of a request that names none, first choice first."""
    subagent_phases: frozenset[Phase]
    """The phases in which a sub-agent is placed by its parent's id."""


def find_prompt_cache_key(identity: Identity) -> str:
    """Returns OpenAI's `prompt_cache_key`, which names a group of conversations; empty for none."""
    return identity.body.get(PROMPT_CACHE_KEY, "")


def find_agent_session(identity: Identity) -> str:
    """Returns `agent_context.session_id` where it names a group of conversations; empty for none."""
    return identity.agent_context.session_id if identity.agent_context is not None else ""
