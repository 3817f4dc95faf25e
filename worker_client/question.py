"""One question to the sidecar, from the moment it is asked until its request ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from worker_client.engine import EngineProfile
from worker_client.memory import MemoryKey
from worker_client.model import Answer
from worker_client.request import RequestFacts


@dataclass(eq=False, slots=True)
class Question:
    """What is asked about one request.

    Attributes:
        facts: the request.
        engine: the engine that will run it, as the gate wants it seen.
        known_rank: the rank that memory binds the conversation to.
        key: where the answer is remembered.
        reply: gets the answer, or None where none came in time or will come; cancelled with its caller.
        asked_at_s: the loop's time when it was asked.
        seq: names it on the stream that it was sent on, 0 before it is sent.
        stream_number: that stream, counted from 1; 0 before it is sent.
        is_late: whether its caller went on without an answer.
        key_revision: the policy that `key` was made by.
    """

    facts: RequestFacts
    engine: EngineProfile
    known_rank: int | None
    key: MemoryKey
    reply: asyncio.Future[Answer | None]
    asked_at_s: float
    seq: int = 0
    stream_number: int = 0
    is_late: bool = False
    key_revision: str = ""

    @property
    def is_sent(self) -> bool:
        """Whether it went out, so that the sidecar must hear of the request's end."""
        return self.stream_number > 0

    async def wait(self, limit_s: float) -> Answer | None:
        """Returns the answer, or None if none came within `limit_s` or none will.

        A plain timer rather than a timeout scope: the caller may be any task, also a new one for each step of
        a generator.
        """
        timer = asyncio.get_running_loop().call_later(limit_s, self._give_up)
        try:
            return await self.reply
        finally:
            timer.cancel()
            self.reply.cancel()  # a caller that is gone wants no question sent; no effect on a reply

    def _give_up(self) -> None:
        if not self.reply.done():
            self.is_late = True
            self.reply.set_result(None)
