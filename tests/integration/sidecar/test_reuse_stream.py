"""Remembered decisions on a stream: what is confirmed, what is corrected, and what makes clients forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from routing_hints.v1 import admin_pb2, service_pb2, types_pb2
from sidecar.app import Clocks
from sidecar.policy.file import parse_policy
from sidecar.policy.holder import activate
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    CONVERSATION_HASH,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_applied,
    make_batch,
    make_finish,
    make_request,
)
from tests.support.sidecar import SidecarServer, read_metric

PLACE = types_pb2.RANK_DIRECTIVE_PLACE
FINAL = {"x-session-id": CONVERSATION, "x-dynamo-session-final": "true"}
_make_placed = partial(make_request, engine_instance=BALANCING_ENGINE.instance_id)


def other_rank(decision: service_pb2.EnrichResponse) -> int:
    return (decision.hints.dp_rank + 1) % BALANCING_ENGINE.dp_size


async def open_placed(stream: WorkerStream) -> service_pb2.EnrichResponse:
    """The decision about the first request of the conversation, whose engine takes ranks."""
    await stream.open(BALANCING_ENGINE)
    (first,) = await stream.enrich(_make_placed())
    assert (first.rank_directive, first.reusable) == (PLACE, True)
    return first


async def test_an_applied_decision_that_still_holds_is_unchanged_and_nothing_else(
    stream: WorkerStream,
) -> None:
    first = await open_placed(stream)
    (result,) = await stream.exchange(_make_placed(request_id="request-2"), applied=make_applied(first))
    assert stream.policy is not None
    assert result == service_pb2.EnrichResult(
        seq=2, unchanged=service_pb2.Unchanged(), generation=stream.policy.reuse_generation
    )


async def test_an_applied_rank_that_differs_is_corrected_with_a_whole_response(stream: WorkerStream) -> None:
    first = await open_placed(stream)
    applied = make_applied(first, dp_rank=other_rank(first))
    (result,) = await stream.exchange(_make_placed(request_id="request-2"), applied=applied)
    assert result.WhichOneof("outcome") == "response"
    assert (result.response.rank_directive, result.response.hints) == (PLACE, first.hints)
    assert result.response.conversation_hash == CONVERSATION_HASH
    assert result.response.decision_id not in ("", first.decision_id)


async def test_a_request_that_waits_gets_a_whole_response_though_nothing_has_changed(
    stream: WorkerStream,
) -> None:
    first = await open_placed(stream)
    (result,) = await stream.exchange(_make_placed(request_id="request-2"))
    assert result.WhichOneof("outcome") == "response"
    assert (result.response.hints, result.response.reusable) == (first.hints, True)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"dp_rank": 4}, "applied.dp_rank", "must be less than engine.dp_size"),
        ({"decision_id": "x" * 257}, "applied.decision_id", "is longer than 256 bytes"),
    ],
    ids=["rank", "id"],
)
async def test_what_was_applied_is_checked_as_the_request_is(
    stream: WorkerStream, fields: dict[str, object], field: str, message: str
) -> None:
    first = await open_placed(stream)
    (result,) = await stream.exchange(_make_placed(), applied=make_applied(first, **fields))
    assert (result.error.code, result.error.field) == (service_pb2.ERROR_CODE_INVALID_ARGUMENT, field)
    assert result.error.message == f"{field}: {message}"


async def test_a_decision_of_the_policy_before_is_decided_anew(
    sidecar: SidecarServer, stream: WorkerStream
) -> None:
    """Though the rank is the same: the client remembers it by the policy's revision."""
    first = await open_placed(stream)
    sidecar.holder.replace(activate(parse_policy("operational: {logging: {level: error}}")))
    (result,) = await stream.exchange(_make_placed(request_id="request-2"), applied=make_applied(first))
    assert stream.policy is not None
    assert (result.response.rank_directive, result.response.hints) == (PLACE, first.hints)
    assert result.response.policy_revision == stream.policy.revision != first.policy_revision


async def test_a_request_that_suspends_its_carrier_has_the_last_result_of_the_old_generation(
    start_sidecar: Callable[..., Awaitable[SidecarServer]], open_channel: OpenChannel
) -> None:
    """It was decided before; under the new number its decision would be reused."""
    now_s = 0.0
    server = await start_sidecar(
        "operational: {single_use_guard: enforce}", clocks=Clocks(monotonic=lambda: now_s)
    )
    stream = WorkerStream(HintsStub(await open_channel(server.target)))
    before = (await stream.open(BALANCING_ENGINE)).reuse_generation
    for cohort in range(2):
        now_s = 301.0 * cohort
        names = [f"conversation-{cohort}-{number:04}" for number in range(120)]
        await stream.enrich(*[_make_placed(name, request_id=name) for name in names])
    now_s = 602.0
    (suspending,) = await stream.exchange(_make_placed("conversation-2-0000"))
    (next_one,) = await stream.exchange(_make_placed("conversation-2-0001"))
    assert stream.policy is not None
    assert (suspending.generation, stream.policy.reuse_generation) == (before, next_one.generation)
    assert next_one.generation != before
    stream.close()


async def test_a_pause_of_placement_is_pushed_as_a_new_generation_to_the_worker_alone(
    hints: HintsStub, stream: WorkerStream
) -> None:
    """Also to a stream that is idle."""
    idle, other = WorkerStream(hints), WorkerStream(hints)
    before = await idle.open(worker_id="w")
    await other.open(BALANCING_ENGINE, worker_id="another")
    await stream.open(BALANCING_ENGINE, worker_id="w")
    for number in range(11):
        name = f"conversation-{number:04}"
        (decision,) = await stream.enrich(_make_placed(name, request_id=name))
        await stream.finish(make_finish(decision, seq=stream.last_seq, observed_dp_rank=other_rank(decision)))
    assert (await idle.read_policy()).reuse_generation != before.reuse_generation
    await other.enrich(_make_placed())
    assert other.policy is not None
    assert other.policy.reuse_generation == before.reuse_generation
    for opened in (idle, other):
        opened.close()


async def test_an_ended_conversation_is_named_to_every_stream_without_a_request(
    hints: HintsStub, stream: WorkerStream, admin: AdminStub
) -> None:
    idle = WorkerStream(hints)
    await idle.open(worker_id="another")
    await open_placed(stream)
    await admin.EndConversation(admin_pb2.EndConversationRequest(conversation_hash=CONVERSATION_HASH))
    for opened in (stream, idle):
        assert await opened.call.read() == service_pb2.EnrichStreamResponse(ended=[CONVERSATION_HASH])
    idle.close()


async def test_the_finish_report_of_a_last_request_ends_its_conversation_at_the_clients(
    stream: WorkerStream,
) -> None:
    await stream.open(BALANCING_ENGINE)
    (last,) = await stream.enrich(_make_placed(identity=types_pb2.Identity(headers=FINAL)))
    await stream.finish(make_finish(last, seq=stream.last_seq))
    assert await stream.call.read() == service_pb2.EnrichStreamResponse(ended=[CONVERSATION_HASH])


async def test_too_many_ended_conversations_at_once_are_a_new_generation_instead(
    stream: WorkerStream,
) -> None:
    """1,024 fit into a message."""
    before = await stream.open(BALANCING_ENGINE)
    names = [f"conversation-{number:04}" for number in range(1_025)]
    decisions = await stream.enrich(
        *[
            _make_placed(
                request_id=name, identity=types_pb2.Identity(headers={**FINAL, "x-session-id": name})
            )
            for name in names
        ]
    )
    await stream.finish(*[make_finish(decision, seq=seq) for seq, decision in enumerate(decisions, 1)])
    message = await stream.call.read()
    assert list(message.ended) == []
    assert message.policy.reuse_generation != before.reuse_generation


async def test_requests_that_a_client_could_not_send_are_counted_by_their_carrier(
    stream: WorkerStream, admin: AdminStub
) -> None:
    await open_placed(stream)
    message = make_batch(_make_placed(), first_seq=stream.last_seq + 1)
    message.dropped.add(source_detail="header:x-session-id", count=3)
    await stream.call.write(message)
    await stream.call.read()
    assert await read_metric(admin, "dropped_requests") == {"header:x-session-id": 3}
