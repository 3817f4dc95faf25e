"""One request that was submitted to the sidecar, until its finish report."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from worker_client._engine import EngineProfile
from worker_client._memory import MemoryKey, make_key
from worker_client._model import ClientPolicy, Decision
from worker_client._request import RequestFacts
from worker_client._selected_carriers import SelectedCarriers, select_carriers

_PUNCTUAL_S = 0.001
_GRACE_S = 0.002


@dataclass(eq=False, slots=True)
class PendingRequest:
    """What is submitted about one request.

    Attributes:
        facts: the request.
        engine: the engine that will run it, as the gate wants it seen.
        policy: states which carriers are sent, and so which make the key.
        reply: gets the decision, or None where none came in time or will come; cancelled with its caller.
            None where nobody waits, since a remembered decision is applied.
        applied: the remembered decision that its caller applied already, None if it waits.
        submitted_at_s: the loop's time when it was submitted.
        carriers: what the request holds in those carriers.
        key: what the decision is remembered by.
        known_rank: the rank that memory binds the conversation to.
        seq: names it on the stream that it was sent on, 0 before it is sent.
        stream_number: that stream, counted from 1; 0 before it is sent.
        is_timed_out: whether its caller went on without a decision.
        is_resent: whether it was sent again, with its engine.
        is_dropped: whether it will never be sent, so that its finish report would free nothing.
        timer: ends the wait, None before the wait.
    """

    facts: RequestFacts
    engine: EngineProfile
    policy: ClientPolicy
    submitted_at_s: float
    reply: asyncio.Future[Decision | None] | None = None
    applied: Decision | None = None
    carriers: SelectedCarriers = field(init=False)
    key: MemoryKey = field(init=False)
    known_rank: int | None = None
    seq: int = 0
    stream_number: int = 0
    is_timed_out: bool = False
    is_resent: bool = False
    is_dropped: bool = False
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._read()

    @property
    def is_sent(self) -> bool:
        """Whether it was sent, so that the sidecar must receive its finish report."""
        return self.stream_number > 0

    @property
    def is_over(self) -> bool:
        """Whether its caller went on without it, so that it need not be sent."""
        return self.reply is not None and self.reply.done()

    def settle(self, decision: Decision | None) -> bool:
        """Gives the decision to whoever waits for it; returns whether somebody did."""
        if self.reply is None or self.reply.done():
            return False
        self.reply.set_result(decision)
        return True

    def follow(self, policy: ClientPolicy) -> None:
        """Takes the policy by which it is sent, if that is another one than when it was submitted.

        A decision belongs to the carriers that were sent; under a key of others it would be applied to
        another conversation.
        """
        if policy is not self.policy:
            self.policy = policy
            self._read()

    def is_keyed_by(self, policy: ClientPolicy) -> bool:
        """Returns whether `policy` reads no other carriers of the request than were sent."""
        if policy is self.policy:
            return True
        return make_key(self.facts, self.engine, select_carriers(self.facts, policy)) == self.key

    def _read(self) -> None:
        self.carriers = select_carriers(self.facts, self.policy)
        self.key = make_key(self.facts, self.engine, self.carriers)

    async def wait(self, limit_s: float) -> Decision | None:
        """Returns the decision, or None if none came within `limit_s` or none will.

        A plain timer rather than a timeout scope: the caller may be any task, also a new one for each step of
        a generator. Where the loop was too busy to fire it in time, the response may be there and not yet
        read, so the loop gets 2 ms more before the request counts as timed out.
        """
        reply = self.reply
        if reply is None:
            return self.applied
        loop = reply.get_loop()
        due_s = loop.time() + limit_s
        self.timer = loop.call_at(due_s, self._give_up, reply, due_s)
        try:
            return await reply
        finally:
            self.timer.cancel()
            reply.cancel()  # a caller that is gone wants no request sent; no effect on a reply

    def _give_up(self, reply: asyncio.Future[Decision | None], due_s: float) -> None:
        if reply.done():
            return
        loop = reply.get_loop()
        if loop.time() - due_s > _PUNCTUAL_S:
            self.timer = loop.call_later(_GRACE_S, self._give_up, reply, math.inf)
            return
        self.is_timed_out = True
        reply.set_result(None)
