"""The end of a conversation: optional, idempotent, and never needed for anything to work."""

from __future__ import annotations

from typing import Protocol

from sidecar.model import Answer, ConversationHash
from sidecar.telemetry.counters import Counters


class Conversations(Protocol):
    """What is remembered of conversations."""

    def end(self, conversation: ConversationHash) -> int:
        """Forgets a conversation on every leg; returns how many entries there were, 0 if it was unknown."""


class Lifecycle:
    """Ends a conversation when its last request has finished."""

    def __init__(self, conversations: Conversations, counters: Counters) -> None:
        self._conversations = conversations
        self._counters = counters

    def on_decision(self, answer: Answer, *, has_finish: bool) -> None:
        """Takes note of a decision.

        Args:
            answer: what was decided.
            has_finish: whether a Finish will follow; without one the conversation ends at once.
        """
        if answer.session_final:
            self._counters.add("final_requests")
            if not has_finish:
                self._end(answer)

    def on_finish(self, answer: Answer) -> None:
        """Takes note that a request has finished."""
        if answer.session_final:
            self._end(answer)

    def _end(self, answer: Answer) -> None:
        ended = self._conversations.end(answer.conversation_hash)
        self._counters.add("ended_conversations", ("known", "true" if ended else "false"))
