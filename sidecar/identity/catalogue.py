"""The carriers that a policy can list, the orders of the profiles, and the headers that are never carriers.

Sources by client: docs/identity.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.identity.baggage_carrier import make_baggage_carrier
from sidecar.identity.body_carrier import ANNOTATION, METADATA, USER_ID, make_body_carrier
from sidecar.identity.carrier import FINAL_HEADER, TENANT_HEADER, Carrier
from sidecar.identity.codex_carrier import CODEX
from sidecar.identity.header_carrier import make_agent_carrier, make_header_carrier
from sidecar.identity.structured_carrier import AGENT_CONTEXT, CONVERSATION_ID, SESSION_CONTROL

_OPENCODE_PARENT = "x-parent-session-id"

_STRUCTURED = (CONVERSATION_ID, AGENT_CONTEXT, SESSION_CONTROL)

_DYNAMO = (make_header_carrier("x-dynamo-session-id", "x-dynamo-parent-session-id"),)

_HARNESSES = (
    make_agent_carrier(
        "switchyard", "x-switchyard-session-id", "x-switchyard-agent-id", "x-switchyard-parent-agent-id"
    ),
    make_agent_carrier(
        "claude-code", "x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"
    ),
    CODEX,
    make_header_carrier("x-deepseek-harness-session-id", "x-deepseek-harness-parent-session-id"),
    make_agent_carrier("nemo-relay", "x-nemo-relay-session-id", "x-nemo-relay-subagent-id"),
    make_header_carrier("x-amp-thread-id"),
    make_header_carrier("x-opencode-session", _OPENCODE_PARENT),
    make_header_carrier("x-claude-session-id"),
)

_GENERIC = (
    make_header_carrier("x-session-id", _OPENCODE_PARENT),
    make_header_carrier("x-session-affinity", _OPENCODE_PARENT),
    make_header_carrier("x-multi-turn-session-id"),
    make_header_carrier("x-litellm-session-id"),
    make_header_carrier("x-smg-routing-key"),
    make_header_carrier("x-sgl-routing-key"),
    make_header_carrier("x-grok-conv-id"),
    make_header_carrier("x-vertex-ai-session-id"),
    make_header_carrier("x-bf-session-id"),
    make_header_carrier("x-routerly-session-id"),
    make_header_carrier("x-olla-session-id"),
)

_BODY = (
    make_body_carrier("conversation", "conversation.id"),
    USER_ID,
    make_body_carrier("metadata.session_id"),
    make_body_carrier("litellm_session_id"),
    make_body_carrier("session_params.session_id"),
    make_body_carrier("session_id"),
)

_BAGGAGE = (make_baggage_carrier("gen_ai.conversation.id"), make_baggage_carrier("session.id"))

_DEFAULT = (*_STRUCTURED, *_DYNAMO, *_HARNESSES, *_GENERIC, METADATA, *_BODY, ANNOTATION, *_BAGGAGE)

# The first is a request id at most gateways; Claude Code's sub-agents inherit the second from the session.
_OFF_BY_DEFAULT = (make_header_carrier("x-correlation-id"), make_header_carrier("x-claude-code-session-id"))

CARRIERS: Mapping[str, Carrier] = {carrier.key: carrier for carrier in (*_DEFAULT, *_OFF_BY_DEFAULT)}
"""All carriers by key."""

DEFAULT_ORDER = tuple(carrier.key for carrier in _DEFAULT)

TRTLLM_SERVE_ORDER = (
    "conversation_id",
    "header:x-claude-code-session-id",
    "header:x-claude-session-id",
    "header:x-session-id",
    "header:x-correlation-id",
    "header:x-session-affinity",
    "header:x-multi-turn-session-id",
)
"""The order of TensorRT-LLM's own HTTP server. Source: `tensorrt_llm/serve/conversation_id.py`."""

DYNAMO_ORDER = (
    "agent_context",
    "header:x-dynamo-session-id",
    "claude-code",
    "codex",
    "header:x-deepseek-harness-session-id",
    "header:x-session-id",
)
"""The order of Dynamo's worker, then of its frontend. Sources: `conversation_affinity.py` of 1.6.1 and
`agents.rs` at 004e2c5."""

_USER = "names a user, who has many conversations"
_TENANT = "names a tenant"
_REQUEST = "names a request"
_PARENT = "names the conversation that started this one"
_ENDPOINT = "names a worker"
_INTERNAL = "is set only inside a serving stack"

NEVER_HEADERS: Mapping[str, str] = {
    **{header: _PARENT for carrier in _DEFAULT for header in carrier.parent_fields.headers},
    "x-user-id": _USER,
    TENANT_HEADER: _TENANT,
    "x-request-id": _REQUEST,
    "request-id": _REQUEST,
    "x-client-request-id": _REQUEST,
    "x-dynamo-request-id": _REQUEST,
    "x-trace-id": _REQUEST,
    "x-amzn-trace-id": _REQUEST,
    "x-b3-traceid": _REQUEST,
    "x-cloud-trace-context": _REQUEST,
    "x-datadog-trace-id": _REQUEST,
    "b3": _REQUEST,
    "traceparent": _REQUEST,
    "tracestate": _REQUEST,
    "baggage": "has members, and only some of them name a conversation",
    "x-openai-subagent": "names a kind of agent",
    "x-codex-turn-metadata": "changes with every turn",
    "x-codex-window-id": "changes when the history is compacted",
    "session-id": "names a tree of agents",
    "session_id": "names a tree of agents",
    "x-aibrix-session-key": "is shared by parallel children",
    "x-session-token": _ENDPOINT,
    "x-session-token-prefill": _ENDPOINT,
    "x-smg-target-worker": _ENDPOINT,
    "x-trtllm-subagent-affinity-id": _INTERNAL,
    "x-trtllm-subagent-affinity-auth": _INTERNAL,
    FINAL_HEADER: "marks the last request of a conversation",
    "authorization": "is a secret",
    "proxy-authorization": "is a secret",
    "cookie": "is a secret",
    "x-api-key": "is a secret",
}
"""Headers that name no conversation, and why."""
