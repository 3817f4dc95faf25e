"""Whatever a peer puts on the wire, a stream of the sidecar answers or refuses, and nothing breaks."""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2
from sidecar.counters import Counters
from sidecar.decider import Decider
from sidecar.drain import DrainGate
from sidecar.policy import Policy
from sidecar.policy_file import PolicyHolder, activate
from sidecar.recorder import Recorder
from sidecar.request_codec import FieldError
from sidecar.rpc import DefectLog, MalformedMessageError
from sidecar.stream import StreamServicer
from tests.fixtures.corpus import list_questions, spoiled


class Peer:
    """Stands in for grpc's context: gives the messages, keeps the answers."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = iter(messages)
        self.answers: list[service_pb2.EnrichStreamResponse] = []

    async def read(self) -> Any:
        """The next message, or the end."""
        return next(self._messages, grpc.aio.EOF)

    async def write(self, data: bytes) -> None:
        """Keeps an answer."""
        self.answers.append(service_pb2.EnrichStreamResponse.FromString(data))


def make_streams(counters: Counters) -> StreamServicer:
    """The real stream, with everything behind it."""
    holder = PolicyHolder(activate(Policy()))
    recorder = Recorder(time.time)
    decider = Decider(holder, recorder, counters)
    return StreamServicer(decider, holder, recorder, counters, DefectLog(counters), DrainGate())


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A message as a client sends it, of captured requests and of ends of some."""
    numbers = count(1)
    message = service_pb2.EnrichStreamRequest()
    if draw(st.booleans()):
        message.hello.worker_id = "worker"
    for question in draw(st.lists(st.sampled_from(list_questions()), max_size=4)):
        message.items.add(seq=next(numbers), request=question)
    for seq in draw(st.lists(st.integers(0, 9), max_size=3)):
        message.finishes.add(seq=seq, request_id="r", phase=1, outcome=1, observed_dp_rank=2)
    return message.SerializeToString()


def parse(data: bytes) -> tuple[service_pb2.EnrichStreamRequest, ...]:
    """The message that the bytes hold, if they hold one."""
    try:
        return (service_pb2.EnrichStreamRequest.FromString(data),)
    except (DecodeError, ValueError):
        return ()


@given(st.lists(spoiled(batches()), max_size=4))
async def test_spoiled_messages_are_answered_or_refused(messages: list[bytes]) -> None:
    """Each item is answered once, in its message's turn; what is no message ends the stream; no defect."""
    counters, peer = Counters(), Peer(*messages)
    refused = False
    try:
        await make_streams(counters).converse(peer)  # type: ignore[arg-type]
    except (FieldError, MalformedMessageError):
        refused = True
    readable = list(takewhile(bool, map(parse, messages)))
    assert refused or len(readable) == len(messages)
    asked = [item.seq for (message,) in readable for item in message.items]
    answered = [result.seq for answer in peer.answers for result in answer.results]
    assert answered == asked[: len(answered)]
    assert refused or len(answered) == len(asked)
    assert "defects" not in {name for name, _, _ in counters}


def test_corpus_holds_every_capture() -> None:
    """The fuzzing begins with real requests, identities and ranks among them."""
    questions = list_questions()
    assert len(questions) > 100
    assert sum(1 for question in questions if question.identity.HasField("agent_context")) > 50
    assert sum(1 for question in questions if question.hints.HasField("dp_rank")) > 20
