"""One question to the sidecar, from the moment it is asked until its request ends."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from worker_client._engine import EngineProfile
from worker_client._memory import MemoryKey, make_key
from worker_client._model import Answer, ClientPolicy
from worker_client._request import RequestFacts
from worker_client._selected_carriers import Carried, pick_carriers

_PUNCTUAL_S = 0.001
_GRACE_S = 0.002


@dataclass(eq=False, slots=True)
class Question:
    """What is asked about one request.

    Attributes:
        facts: the request.
        engine: the engine that will run it, as the gate wants it seen.
        policy: says which carriers go out, and so which make the key.
        reply: gets the answer, or None where none came in time or will come; cancelled with its caller.
        asked_at_s: the loop's time when it was asked.
        carried: what the request holds in those carriers.
        key: where the answer is remembered.
        known_rank: the rank that memory binds the conversation to.
        seq: names it on the stream that it was sent on, 0 before it is sent.
        stream_number: that stream, counted from 1; 0 before it is sent.
        is_late: whether its caller went on without an answer.
        timer: ends the wait for the answer, None before the wait.
    """

    facts: RequestFacts
    engine: EngineProfile
    policy: ClientPolicy
    reply: asyncio.Future[Answer | None]
    asked_at_s: float
    carried: Carried = field(init=False)
    key: MemoryKey = field(init=False)
    known_rank: int | None = None
    seq: int = 0
    stream_number: int = 0
    is_late: bool = False
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._read()

    @property
    def is_sent(self) -> bool:
        """Whether it went out, so that the sidecar must hear of the request's end."""
        return self.stream_number > 0

    def follow(self, policy: ClientPolicy) -> None:
        """Takes the policy by which it is sent, if that is another one than when it was asked.

        An answer belongs to the carriers that were sent; under a key of others it would be given to
        another conversation.
        """
        if policy is not self.policy:
            self.policy = policy
            self._read()

    def is_asked_by(self, policy: ClientPolicy) -> bool:
        """Returns whether `policy` reads no other carriers of the request than were sent."""
        if policy is self.policy:
            return True
        return make_key(self.facts, self.engine, pick_carriers(self.facts, policy)) == self.key

    def _read(self) -> None:
        self.carried = pick_carriers(self.facts, self.policy)
        self.key = make_key(self.facts, self.engine, self.carried)

    async def wait(self, limit_s: float) -> Answer | None:
        """Returns the answer, or None if none came within `limit_s` or none will.

        A plain timer rather than a timeout scope: the caller may be any task, also a new one for each step of
        a generator. Where the loop was too busy to fire it in time, the answer may be there and not yet read,
        so the loop gets one more look, of 2 ms, before the sidecar counts as late.
        """
        loop = self.reply.get_loop()
        due_s = loop.time() + limit_s
        self.timer = loop.call_at(due_s, self._give_up, due_s)
        try:
            return await self.reply
        finally:
            self.timer.cancel()
            self.reply.cancel()  # a caller that is gone wants no question sent; no effect on a reply

    def _give_up(self, due_s: float) -> None:
        if self.reply.done():
            return
        loop = self.reply.get_loop()
        if loop.time() - due_s > _PUNCTUAL_S:
            self.timer = loop.call_later(_GRACE_S, self._give_up, math.inf)
            return
        self.is_late = True
        self.reply.set_result(None)
