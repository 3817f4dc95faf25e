"""The end of a conversation: when it is told, and that telling it again does no harm."""

from __future__ import annotations

from sidecar.decision.conversation_end import Lifecycle
from sidecar.decision.decide import decide
from sidecar.model import Answer, ConversationHash, Identity, Phase, Query, SessionControl
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.telemetry.counters import Counters


class Table:
    """Remembers one conversation, and who was ended."""

    def __init__(self, known: ConversationHash) -> None:
        self._known = {known}
        self.ended: list[ConversationHash] = []

    def end(self, conversation: ConversationHash) -> int:
        """Forgets it."""
        self.ended.append(conversation)
        forgotten = len(self._known & {conversation})
        self._known.discard(conversation)
        return forgotten


def _answer(action: str) -> Answer:
    identity = Identity(session_control=SessionControl("conv-7f3a", action))
    return decide(Query(Phase.PREFILL, identity=identity), compile_policy(Policy()))


def _count(counters: Counters) -> dict[str, int]:
    return {"/".join([name, *(value for _, value in labels)]): count for name, labels, count in counters}


_LAST, _OPEN, _BIND = _answer("close"), _answer("open"), _answer("bind")


def test_a_conversation_ends_when_its_last_request_has_finished() -> None:
    """The decision alone ends nothing, since the request is still to run."""
    table, counters = Table(_LAST.conversation_hash), Counters()
    lifecycle = Lifecycle(table, counters)
    lifecycle.on_decision(_LAST, has_finish=True)
    assert table.ended == []
    lifecycle.on_finish(_LAST)
    assert table.ended == [_LAST.conversation_hash]
    assert _count(counters) == {"final_requests": 1, "ended_conversations/true": 1}


def test_ending_twice_is_harmless() -> None:
    """The other leg's finish, or a repeated one, finds nothing and says so."""
    table, counters = Table(_LAST.conversation_hash), Counters()
    lifecycle = Lifecycle(table, counters)
    for _ in range(2):
        lifecycle.on_finish(_LAST)
    assert _count(counters) == {"ended_conversations/true": 1, "ended_conversations/false": 1}


def test_without_a_finish_to_come_it_ends_at_once() -> None:
    """A request of its own has no Finish."""
    table = Table(_LAST.conversation_hash)
    Lifecycle(table, Counters()).on_decision(_LAST, has_finish=False)
    assert table.ended == [_LAST.conversation_hash]


def test_other_requests_end_nothing() -> None:
    """`open` and `bind` behave alike, and as no action at all."""
    table, counters = Table(_OPEN.conversation_hash), Counters()
    lifecycle = Lifecycle(table, counters)
    for answer in (_OPEN, _BIND, _OPEN._replace(session_final=False)):
        lifecycle.on_decision(answer, has_finish=False)
        lifecycle.on_finish(answer)
    assert table.ended == []
    assert _count(counters) == {}
    assert _OPEN == _BIND


def test_where_nothing_is_remembered_nothing_ends() -> None:
    """Without a table an end is counted as one of an unknown conversation."""
    counters = Counters()
    Lifecycle(Table(ConversationHash("")), counters).on_finish(_LAST)
    assert _count(counters) == {"ended_conversations/false": 1}
