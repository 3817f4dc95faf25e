"""Structured carriers: those with a field of their own in the contract."""

from __future__ import annotations

from collections.abc import Mapping

from routing_hints import tokens
from routing_hints.vocabulary import IdentitySource
from sidecar.identity.carrier import Carrier, Reading
from sidecar.model import AgentContext, Identity


def _read_conversation_id(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    return Reading("conversation_id", identity.conversation_id) if identity.conversation_id else None


def _read_agent_context(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    context = identity.agent_context
    if context is None:
        return None
    # With a trajectory `session_id` is the run, shared by a whole tree of agents. So an unusable
    # trajectory makes the carrier unusable; it does not fall back to the run.
    if context.trajectory_id:
        return _read_trajectory(context)
    if context.session_id:
        name, session_id = "agent_context.session_id", context.session_id
        return Reading(name, session_id, context.parent_session_id, context.session_final)
    return None


def _read_trajectory(context: AgentContext, run_id: str = "") -> Reading:
    return Reading(
        "agent_context.trajectory_id",
        context.trajectory_id,
        context.parent_trajectory_id,
        context.session_final,
        run_id,
    )


def _read_agent_context_within_run(identity: Identity, headers: Mapping[str, str]) -> Reading | None:
    context = identity.agent_context
    if context is not None and context.trajectory_id:
        return _read_trajectory(context, context.session_id.strip())
    return _read_agent_context(identity, headers)


def _refuse_agent_context(identity: Identity, headers: Mapping[str, str]) -> Reading | None:
    reading = _read_agent_context(identity, headers)
    return Reading(reading.name, reading.session_id, refusal=tokens.AFFINITY_ONLY) if reading else None


def _read_session_control(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    control = identity.session_control
    if control is None or not control.session_id:
        return None
    remarks = (f"{tokens.TIMEOUT_NOT_USED}:{control.timeout_s}s",) if control.timeout_s else ()
    # `open` and `bind` only matter to Dynamo's router (1.1 and 1.2); a first request implies the same here.
    return Reading(
        "session_control.session_id",
        control.session_id,
        final=control.action == "close",
        remarks=remarks,
    )


CONVERSATION_ID = Carrier(
    "conversation_id", "conversation_id", IdentitySource.CONVERSATION_ID, _read_conversation_id
)
AGENT_CONTEXT = Carrier(
    "agent_context", "agent_context.session_id", IdentitySource.AGENT_CONTEXT, _read_agent_context
)
AGENT_CONTEXT_WITHIN_RUN = Carrier(
    "agent_context",
    "agent_context.session_id",
    IdentitySource.AGENT_CONTEXT,
    _read_agent_context_within_run,
)
"""For trajectory ids that are unique only within their run."""
AGENT_CONTEXT_AFFINITY_ONLY = Carrier(
    "agent_context", "agent_context.session_id", IdentitySource.AGENT_CONTEXT, _refuse_agent_context
)
"""For an `agent_context` that names a group of conversations, which is never an id."""
SESSION_CONTROL = Carrier(
    "session_control",
    "session_control.session_id",
    IdentitySource.SESSION_CONTROL,
    _read_session_control,
)
