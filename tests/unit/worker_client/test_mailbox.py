"""How many questions may be under way at a time."""

from __future__ import annotations

import asyncio

from routing_hints.v1 import service_pb2
from tests.support.builders import build_profile
from worker_client._call import Question
from worker_client._model import ClientPolicy
from worker_client._request import RequestFacts
from worker_client._send_queue import MAX_WAITING, Mailbox
from worker_client._stats import Stats


def build_question() -> Question:
    """A question that somebody waits for."""
    loop = asyncio.get_running_loop()
    return Question(RequestFacts(), build_profile(), ClientPolicy(), loop.create_future(), loop.time())


async def fill(mailbox: Mailbox) -> list[Question]:
    """As many questions as there is room for, all of them sent."""
    questions = [build_question() for _ in range(MAX_WAITING)]
    assert all(mailbox.add_question(question) for question in questions)
    while mailbox.next_question() is not None:
        pass
    return questions


async def test_questions_under_way_are_bounded() -> None:
    """While every place is waited for, the next question is refused, and is decided without the sidecar."""
    mailbox = Mailbox(Stats(), lambda error: None)
    await fill(mailbox)
    assert not mailbox.add_question(build_question())


async def test_question_that_nobody_waits_for_gives_up_its_place() -> None:
    """A sidecar that answers some questions only does not stop the others in the end."""
    mailbox = Mailbox(Stats(), lambda error: None)
    questions = await fill(mailbox)
    for late in questions[1:]:
        late.reply.set_result(None)
    assert mailbox.add_question(build_question())
    assert mailbox.take(questions[1].seq) is None
    assert mailbox.take(questions[0].seq) is questions[0]


async def test_ends_go_out_before_the_questions_that_came_after_them() -> None:
    """A question is decided by the load that they take off, so they must not wait for a later message."""
    mailbox = Mailbox(Stats(), lambda error: None)
    asked = build_question()
    for number in range(200):
        mailbox.add_finish(asked, service_pb2.Finish(request_id=str(number)), is_stream_up=True)
    assert mailbox.add_question(build_question())
    batch = mailbox.next_batch(ClientPolicy())
    assert (len(batch.items), len(batch.finishes)) == (1, 200)
