"""How long a question waits for its answer."""

from __future__ import annotations

import asyncio
import time

from tests.support.builders import build_answer, build_profile
from worker_client import RankDirective
from worker_client._call import Question
from worker_client._model import ClientPolicy
from worker_client._request import RequestFacts

ANSWER = build_answer(RankDirective.WITHHOLD, "c")
LIMIT_S = 0.005


def build_question() -> Question:
    """A question that was just asked."""
    loop = asyncio.get_running_loop()
    return Question(RequestFacts(), build_profile(), ClientPolicy(), loop.create_future(), loop.time())


async def answer_after_turns(question: Question, turns: int) -> None:
    """Answers once the loop has turned so often, as gRPC needs some turns to hand a message over."""
    for _ in range(turns):
        await asyncio.sleep(0)
    if not question.reply.done():
        question.reply.set_result(ANSWER)


async def test_answer_that_is_there_when_a_busy_loop_looks_again_is_not_late() -> None:
    """The loop was busy past the deadline with the answer unread; the sidecar was not late."""
    question = build_question()
    waiting = asyncio.create_task(question.wait(LIMIT_S))
    await asyncio.sleep(0)
    time.sleep(4 * LIMIT_S)  # noqa: ASYNC251  the worker's other work, which keeps the loop
    reading = asyncio.create_task(answer_after_turns(question, 4))
    assert (await waiting, question.is_late) == (ANSWER, False)
    await reading


async def test_busy_loop_looks_again_once() -> None:
    """A sidecar that is silent all the same is late, however busy the loop was."""
    question = build_question()
    waiting = asyncio.create_task(question.wait(LIMIT_S))
    await asyncio.sleep(0)
    time.sleep(4 * LIMIT_S)  # noqa: ASYNC251  the worker's other work, which keeps the loop
    assert (await waiting, question.is_late) == (None, True)
