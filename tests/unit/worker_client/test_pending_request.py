"""How long a request waits for its decision."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from tests.support.builders import WITHHOLD, build_decision, build_pending
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest
from worker_client._request import RequestFacts

DECISION = build_decision(WITHHOLD, "c")
LIMIT_S = 0.005


async def reply_after_turns(pending: PendingRequest, turns: int) -> None:
    """Replies once the loop has turned so often, as gRPC needs some turns to hand a message over."""
    for _ in range(turns):
        await asyncio.sleep(0)
    pending.settle(DECISION)


async def test_a_decision_that_is_there_when_a_busy_loop_looks_again_is_not_timed_out() -> None:
    """The loop was busy past the deadline with the decision unread; the sidecar was in time."""
    pending = build_pending()
    waiting = asyncio.create_task(pending.wait(LIMIT_S))
    await asyncio.sleep(0)
    time.sleep(4 * LIMIT_S)  # noqa: ASYNC251  the worker's other work, which keeps the loop
    reading = asyncio.create_task(reply_after_turns(pending, 4))
    assert (await waiting, pending.is_timed_out) == (DECISION, False)
    await reading


async def test_a_busy_loop_looks_again_once() -> None:
    """A sidecar that does not respond all the same is timed out, however busy the loop was."""
    pending = build_pending()
    waiting = asyncio.create_task(pending.wait(LIMIT_S))
    await asyncio.sleep(0)
    time.sleep(4 * LIMIT_S)  # noqa: ASYNC251  the worker's other work, which keeps the loop
    assert (await waiting, pending.is_timed_out) == (None, True)


async def test_a_cancelled_caller_wants_no_request_sent() -> None:
    pending = build_pending()
    waiting = asyncio.create_task(pending.wait(30.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pending.is_over
    assert not pending.is_timed_out


async def test_a_request_follows_the_policy_by_which_it_is_sent() -> None:
    """Under a key of other carriers than were sent its decision would be applied to another conversation."""
    policy = ClientPolicy(revision="r1", headers=("x-session-id",))
    pending = build_pending(RequestFacts(headers={"x-session-id": "h"}), policy=ClientPolicy())
    assert pending.carriers.headers == ()
    pending.follow(policy)
    assert pending.carriers.headers == (("x-session-id", "h"),)
    assert pending.is_keyed_by(replace(policy, revision="r2"))
    assert not pending.is_keyed_by(ClientPolicy(revision="r2"))
