"""From the contract's message of an identity to the decision's values."""

from __future__ import annotations

from collections.abc import Mapping

from routing_hints.v1 import types_pb2
from sidecar.model import NOTHING, AgentContext, Identity, SessionControl
from sidecar.wire.field_limit import ACTION_BYTES, check_size


def decode_identity(message: types_pb2.Identity) -> Identity:
    """Returns the carriers of a request, whose sizes were checked.

    Raises:
        FieldError: the action of a session control is too long.
    """
    agent_context = session_control = None
    if message.HasField("agent_context"):
        context = message.agent_context
        agent_context = AgentContext(
            context.session_id,
            context.parent_session_id,
            context.session_final,
            context.trajectory_id,
            context.parent_trajectory_id,
        )
    if message.HasField("session_control"):
        control = message.session_control
        check_size(control.action, ACTION_BYTES, "identity.session_control.action")
        session_control = SessionControl(control.session_id, control.action, control.timeout)
    return Identity(
        message.conversation_id,
        agent_context,
        session_control,
        _read_map(message.headers),
        _read_map(message.metadata),
        tuple(message.annotations) if message.annotations else (),
        _read_map(message.body),
    )


def _read_map(entries: Mapping[str, str]) -> Mapping[str, str]:
    # Most are empty, and asking is a third of the cost of copying nothing.
    return dict(entries.items()) if entries else NOTHING
