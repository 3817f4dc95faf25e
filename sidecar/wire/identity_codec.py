"""From the contract's message of an identity to the decision's values, no sooner than they are needed."""

from __future__ import annotations

from collections.abc import Mapping

from routing_hints.v1 import types_pb2
from sidecar.model import NOTHING, AgentContext, Identity, SessionControl

_MAX_KEY_BYTES = 1_024


class WireIdentity:
    """The carriers of one request, decoded when they are read.

    Args:
        message: the request's identity; its sizes were checked.
    """

    __slots__ = ("_message", "key")

    def __init__(self, message: types_pb2.Identity) -> None:
        self._message = message
        self.key = message.SerializeToString() if message.ByteSize() <= _MAX_KEY_BYTES else None

    def read(self) -> Identity:
        """Returns the carriers."""
        message = self._message
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
    # Most are empty, and looking costs a third of copying nothing.
    return dict(entries.items()) if entries else NOTHING
