"""Placement seen from outside: over a real socket, question by question."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarServer

_ENGINE = types_pb2.EngineProfile(
    instance_id="start-1",
    dialect=types_pb2.ENGINE_DIALECT_RANK_ONLY,
    adp_router=types_pb2.ADP_ROUTER_DEFAULT,
    rank_source=types_pb2.RANK_SOURCE_SIDECAR,
    dp_size=4,
)
_RECORDING = types_pb2.EngineProfile(
    instance_id="start-1",
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    rank_source=types_pb2.RANK_SOURCE_SIDECAR,
    records_first_rank=True,
    dp_size=4,
)
NEW, RETAINED, NONE = types_pb2.DECISION_NEW, types_pb2.DECISION_RETAINED, types_pb2.DECISION_NONE
PLACE, WITHHOLD = types_pb2.RANK_DIRECTIVE_PLACE, types_pb2.RANK_DIRECTIVE_WITHHOLD
# Worked out with hashlib from the rule of docs/placement.md, for four ranks.
CONVERSATION, HASH, PREFERRED = "conv-7f3a", "7c5832ae00b4609f", 1


def _ask(session_id: str = CONVERSATION, **fields: Any) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(
        **{
            "worker_id": "w",
            "phase": types_pb2.PHASE_PREFILL,
            "identity": types_pb2.Identity(headers={"x-session-id": session_id}),
            "engine": _ENGINE,
            "model": "m",
            "prompt_tokens": 1_000,
            **fields,
        }
    )


class Stream:
    """One stream that asks and ends requests one by one."""

    def __init__(self, hints: service_pb2_grpc.RoutingHintsServiceStub) -> None:
        self._call = hints.EnrichStream()
        self._seq = 0

    async def send(
        self, *requests: service_pb2.EnrichRequest, finishes: tuple[service_pb2.Finish, ...] = ()
    ) -> list[service_pb2.EnrichResponse]:
        """Sends one message and returns its answers, in order."""
        items = []
        for request in requests:
            self._seq += 1
            items.append(service_pb2.EnrichItem(seq=self._seq, request=request))
        await self._call.write(service_pb2.EnrichStreamRequest(items=items, finishes=finishes))
        response = await self._call.read()
        return [result.response for result in sorted(response.results, key=lambda result: result.seq)]

    def close(self) -> None:
        """Ends it."""
        self._call.cancel()


def _end(answer: service_pb2.EnrichResponse, **fields: Any) -> service_pb2.Finish:
    return service_pb2.Finish(
        **{
            "phase": types_pb2.PHASE_PREFILL,
            "decision_id": answer.decision_id,
            "outcome": service_pb2.FINISH_OUTCOME_COMPLETED,
            "applied_directive": answer.rank_directive,
            "observed_dp_rank": answer.hints.dp_rank,
            **fields,
        }
    )


@pytest.fixture
async def channel(sidecar: SidecarServer) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a sidecar with the embedded policy."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        yield channel


@pytest.fixture
def hints(channel: grpc.aio.Channel) -> service_pb2_grpc.RoutingHintsServiceStub:
    """The request path."""
    return service_pb2_grpc.RoutingHintsServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> admin_pb2_grpc.RoutingHintsAdminServiceStub:
    """The admin service."""
    return admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)


@pytest.fixture
def stream(hints: service_pb2_grpc.RoutingHintsServiceStub) -> Any:
    """A stream that is closed afterwards."""
    stream = Stream(hints)
    yield stream
    stream.close()


async def _read_stats(admin: admin_pb2_grpc.RoutingHintsAdminServiceStub, name: str) -> dict[str, int]:
    stats = await admin.GetStats(admin_pb2.GetStatsRequest())
    return {
        "/".join(counter.labels[label] for label in sorted(counter.labels)): counter.value
        for counter in stats.counters
        if counter.name == name
    }


async def test_a_person_sees_a_conversation_placed(hints: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """Unary questions place as the stream does: first as new, then as retained."""
    first, second = [await hints.Enrich(_ask()) for _ in range(2)]
    assert [answer.rank_directive for answer in (first, second)] == [PLACE, PLACE]
    assert [answer.hints.dp_rank for answer in (first, second)] == [PREFERRED, PREFERRED]
    assert [answer.decision for answer in (first, second)] == [NEW, RETAINED]
    assert not first.hints.HasField("conversation_id")


async def test_explaining_changes_nothing(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """An explanation shows rank and decision, and the conversation is still new afterwards."""
    for _ in range(2):
        explained = (await hints.Explain(service_pb2.ExplainRequest(request=_ask()))).answer
        assert (explained.rank_directive, explained.hints.dp_rank) == (PLACE, PREFERRED)
        assert explained.decision == NEW
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest())
    assert list(listed.conversations) == []
    assert await _read_stats(admin, "placements") == {}
    assert (await hints.Enrich(_ask())).decision == NEW


async def test_only_the_stream_adds_load(
    hints: service_pb2_grpc.RoutingHintsServiceStub,
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub,
    stream: Stream,
) -> None:
    """A unary question is never outstanding, one of a stream is until it ends."""
    await hints.Enrich(_ask())
    outstanding = await _read_stats(admin, "placement_outstanding_tokens")
    assert outstanding == {f"prefill/{rank}": 0 for rank in range(4)}
    (answer,) = await stream.send(_ask("another-conversation"))
    outstanding = await _read_stats(admin, "placement_outstanding_tokens")
    assert outstanding[f"prefill/{answer.hints.dp_rank}"] == sum(outstanding.values()) == 1_000
    assert await _read_stats(admin, "placement_outstanding_skew_percent") == {"prefill": 400}
    await stream.send(_ask(), finishes=(_end(answer),))
    outstanding = await _read_stats(admin, "placement_outstanding_tokens")
    # The conversation that is resident already has one token to compute.
    assert sum(outstanding.values()) == 1


async def test_the_ends_of_a_message_count_for_its_items(stream: Stream) -> None:
    """A turn that ended before the next was asked is over when the next is decided about."""
    (first,) = await stream.send(_ask())
    (second,) = await stream.send(_ask(), finishes=(_end(first),))
    assert (first.decision, second.decision) == (NEW, RETAINED)


async def test_first_turns_of_one_batch_get_one_rank(stream: Stream) -> None:
    """Requests of a new conversation that come together are placed together, and others are spread."""
    answers = await stream.send(
        *[_ask() for _ in range(5)], *[_ask(f"other-conversation-{n}") for n in range(3)]
    )
    ranks = [answer.hints.dp_rank for answer in answers]
    assert ranks[:5] == [PREFERRED] * 5
    assert sorted(ranks[5:]) == [0, 2, 3]


async def test_a_recording_engine_is_told_the_first_rank_only(stream: Stream) -> None:
    """PLACE on NEW, with the id; WITHHOLD on RETAINED, with the id and without a rank."""
    (first,) = await stream.send(_ask(engine=_RECORDING))
    (second,) = await stream.send(_ask(engine=_RECORDING), finishes=(_end(first),))
    assert (first.rank_directive, first.decision, first.hints.dp_rank) == (PLACE, NEW, PREFERRED)
    assert (second.rank_directive, second.decision) == (WITHHOLD, RETAINED)
    assert not second.hints.HasField("dp_rank")
    assert first.hints.conversation_id == second.hints.conversation_id == CONVERSATION


async def test_a_remembered_rank_is_adopted(hints: service_pb2_grpc.RoutingHintsServiceStub) -> None:
    """A sidecar that knows nothing goes on where the worker says."""
    answer = await hints.Enrich(_ask(known_rank=3))
    assert (answer.hints.dp_rank, answer.decision) == (3, RETAINED)


@pytest.mark.parametrize(
    ("when", "rank", "kept"), [("router_rank_absent", None, "router"), ("always", 1, "sidecar")]
)
async def test_disagreement_with_the_router_is_counted(
    when: str, rank: int | None, kept: str, start_sidecar: Callable[..., Awaitable[SidecarServer]]
) -> None:
    """Whoever owns the rank, the other's choice is counted where it differs."""
    server = await start_sidecar(f"operational: {{placement: {{when: {when}}}}}")
    async with grpc.aio.insecure_channel(server.target) as channel:
        hints = service_pb2_grpc.RoutingHintsServiceStub(channel)
        await hints.Enrich(_ask())
        for router_rank in (PREFERRED, 2):
            answer = await hints.Enrich(_ask(hints=types_pb2.RoutingHints(dp_rank=router_rank)))
            assert (answer.hints.dp_rank if answer.hints.HasField("dp_rank") else None) == rank
        admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        assert await _read_stats(admin, "router_rank_disagreement") == {kept: 1}


async def test_an_engine_that_does_not_follow_is_left_alone(
    stream: Stream, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """After eleven of 200 elsewhere the router's rank stands, and notice, counter and gauge say so."""
    for number in range(11):
        (answer,) = await stream.send(_ask(f"some-conversation-{number}"))
        elsewhere = (answer.hints.dp_rank + 1) % 4
        (after,) = await stream.send(
            _ask("the-one-after-it"), finishes=(_end(answer, observed_dp_rank=elsewhere),)
        )
    assert (after.rank_directive, after.decision) == (types_pb2.RANK_DIRECTIVE_FORWARD, NONE)
    assert list(after.notices) == ["placement-not-honoured"]
    assert await _read_stats(admin, "placement_pauses") == {"prefill": 1}
    assert await _read_stats(admin, "placement_paused") == {"prefill": 1}


async def test_a_worker_that_reconnects_does_not_count_twice(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """The same request on a second stream replaces its first attempt, whose late end frees nothing."""
    first, second = Stream(hints), Stream(hints)
    (before,) = await first.send(_ask(request_id="r"))
    first.close()
    (after,) = await second.send(_ask(request_id="r"))
    assert (after.hints.dp_rank, after.decision) == (before.hints.dp_rank, NEW)
    assert sum((await _read_stats(admin, "placement_outstanding_tokens")).values()) == 1_000
    await second.send(_ask("x" * 20, prompt_tokens=1), finishes=(_end(before),))
    assert sum((await _read_stats(admin, "placement_outstanding_tokens")).values()) == 1_001
    await second.send(_ask("y" * 20, prompt_tokens=1), finishes=(_end(after),))
    assert sum((await _read_stats(admin, "placement_outstanding_tokens")).values()) == 2
    second.close()


async def test_conversations_are_listed_by_hash(
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub, stream: Stream
) -> None:
    """An entry shows where a conversation is and what it keeps there, and no id of it."""
    (answer,) = await stream.send(_ask(tenant="tenant-a", model="m"))
    await stream.send(_ask(tenant="tenant-a", prompt_tokens=1_200), finishes=(_end(answer),))
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest())
    (shown,) = listed.conversations
    assert listed.next_page_token == ""
    assert shown.conversation_hash == answer.conversation_hash
    assert (shown.worker_id, shown.instance_id, shown.model) == ("w", "start-1", "m")
    assert (shown.phase, shown.dp_rank) == (types_pb2.PHASE_PREFILL, answer.hints.dp_rank)
    assert (shown.in_flight, shown.resident_tokens) == (1, 1_000)
    assert shown.idle.ToNanoseconds() >= 0
    text = str(listed)
    assert CONVERSATION not in text
    assert "tenant-a" not in text


async def test_pages_go_from_the_latest_use_backwards(
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub, hints: service_pb2_grpc.RoutingHintsServiceStub
) -> None:
    """Every conversation is on exactly one page, and a filter leaves the others out."""
    hashes = []
    for number in range(7):
        worker = "w" if number % 2 else "v"
        hashes.append(
            (await hints.Enrich(_ask(f"conversation-{number}", worker_id=worker))).conversation_hash
        )
    pages, token = [], ""
    while True:
        page = await admin.ListConversations(
            admin_pb2.ListConversationsRequest(page_size=3, page_token=token)
        )
        pages.append([shown.conversation_hash for shown in page.conversations])
        token = page.next_page_token
        if not token:
            break
    assert pages == [hashes[6:3:-1], hashes[3:0:-1], hashes[:1]]
    only = await admin.ListConversations(admin_pb2.ListConversationsRequest(worker_id="w"))
    assert [shown.conversation_hash for shown in only.conversations] == hashes[5::-2]


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "9" * 21, "²"])
async def test_a_page_that_can_not_be_is_refused(
    token: str, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """A token that no page gave is a bad argument."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.ListConversations(admin_pb2.ListConversationsRequest(page_token=token))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith("page_token: ")


async def test_ending_a_conversation_forgets_it_everywhere(
    admin: admin_pb2_grpc.RoutingHintsAdminServiceStub, hints: service_pb2_grpc.RoutingHintsServiceStub
) -> None:
    """It is gone from every leg, and ending it again is no error."""
    for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_AGGREGATED):
        await hints.Enrich(_ask(phase=phase))
    name = {"conversation_hash": HASH}
    shown = await admin.GetConversation(admin_pb2.GetConversationRequest(**name))
    assert sorted(entry.phase for entry in shown.conversations) == [1, 3]
    ended = [await admin.EndConversation(admin_pb2.EndConversationRequest(**name)) for _ in range(2)]
    assert [answer.ended for answer in ended] == [2, 0]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.GetConversation(admin_pb2.GetConversationRequest(**name))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (await hints.Enrich(_ask())).decision == NEW


async def test_a_last_request_ends_the_binding_when_it_finishes(
    hints: service_pb2_grpc.RoutingHintsServiceStub, admin: admin_pb2_grpc.RoutingHintsAdminServiceStub
) -> None:
    """The table forgets the conversation with the Finish of the request that said so, and not before."""

    async def list_known() -> list[str]:
        page = await admin.ListConversations(admin_pb2.ListConversationsRequest())
        return [conversation.conversation_hash for conversation in page.conversations]

    stream = Stream(hints)
    final = {"x-session-id": CONVERSATION, "x-dynamo-session-final": "true"}
    (first,) = await stream.send(_ask())
    (last,) = await stream.send(_ask(identity=types_pb2.Identity(headers=final)), finishes=(_end(first),))
    assert (last.decision, "session-final" in last.notices) == (RETAINED, True)
    assert await list_known() == [HASH]
    (other,) = await stream.send(_ask("another"), finishes=(_end(last),))
    assert await list_known() == [other.conversation_hash]
    stats = await admin.GetStats(admin_pb2.GetStatsRequest())
    ended = [(dict(c.labels), c.value) for c in stats.counters if c.name == "ended_conversations"]
    assert ended == [({"known": "true"}, 1)]
    stream.close()
