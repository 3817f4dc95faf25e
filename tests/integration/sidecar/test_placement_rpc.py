"""Placement seen from outside: over a real socket, request by request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio
import pytest

from routing_hints.v1 import admin_pb2, service_pb2, types_pb2
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    CONVERSATION_HASH,
    RECORDING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_finish,
    make_request,
)
from tests.support.sidecar import SidecarServer, read_metric, sum_metric

NEW, RETAINED, NONE = (
    types_pb2.PLACEMENT_STATE_NEW,
    types_pb2.PLACEMENT_STATE_RETAINED,
    types_pb2.PLACEMENT_STATE_NONE,
)
PLACE, WITHHOLD = types_pb2.RANK_DIRECTIVE_PLACE, types_pb2.RANK_DIRECTIVE_WITHHOLD
PREFERRED = 1
"""The rank of `CONVERSATION`, worked out with hashlib from the rule of docs/placement.md, for four ranks."""

_make_request = partial(
    make_request, request_id="", worker_id="w", engine=BALANCING_ENGINE, model="m", prompt_tokens=1_000
)


async def test_a_unary_request_is_placed_as_one_of_a_stream(hints: HintsStub) -> None:
    """So that a person with grpcurl sees a conversation placed: first as new, then as retained."""
    first, second = [await hints.Enrich(_make_request()) for _ in range(2)]
    assert [decision.rank_directive for decision in (first, second)] == [PLACE, PLACE]
    assert [decision.hints.dp_rank for decision in (first, second)] == [PREFERRED, PREFERRED]
    assert [decision.placement for decision in (first, second)] == [NEW, RETAINED]
    assert not first.hints.HasField("conversation_id")


async def test_an_explanation_shows_the_rank_and_binds_nothing(hints: HintsStub, admin: AdminStub) -> None:
    for _ in range(2):
        explained = (await hints.Explain(service_pb2.ExplainRequest(request=_make_request()))).decision
        assert (explained.rank_directive, explained.hints.dp_rank) == (PLACE, PREFERRED)
        assert explained.placement == NEW
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest())
    assert list(listed.conversations) == []
    assert await read_metric(admin, "placements") == {}
    assert (await hints.Enrich(_make_request())).placement == NEW


async def test_only_requests_of_a_stream_add_load(
    hints: HintsStub, admin: AdminStub, stream: WorkerStream
) -> None:
    """Until they end; for a unary one no finish report would follow."""
    await hints.Enrich(_make_request())
    outstanding = await read_metric(admin, "placement_outstanding_tokens")
    assert outstanding == {f"prefill/{rank}": 0 for rank in range(4)}
    (decision,) = await stream.enrich(_make_request("another-conversation"))
    outstanding = await read_metric(admin, "placement_outstanding_tokens")
    assert outstanding[f"prefill/{decision.hints.dp_rank}"] == sum(outstanding.values()) == 1_000
    assert await read_metric(admin, "placement_outstanding_skew_ratio") == {"prefill": 4}
    await stream.enrich(_make_request(), finishes=(make_finish(decision),))
    outstanding = await read_metric(admin, "placement_outstanding_tokens")
    # The conversation that is resident already has one token to compute.
    assert sum(outstanding.values()) == 1


async def test_finish_reports_of_a_message_are_taken_before_its_items(stream: WorkerStream) -> None:
    (first,) = await stream.enrich(_make_request())
    (second,) = await stream.enrich(_make_request(), finishes=(make_finish(first),))
    assert (first.placement, second.placement) == (NEW, RETAINED)


async def test_first_turns_of_one_conversation_in_a_batch_get_one_rank_and_others_are_spread(
    stream: WorkerStream,
) -> None:
    decisions = await stream.enrich(
        *[_make_request() for _ in range(5)], *[_make_request(f"other-conversation-{n}") for n in range(3)]
    )
    ranks = [decision.hints.dp_rank for decision in decisions]
    assert ranks[:5] == [PREFERRED] * 5
    assert sorted(ranks[5:]) == [0, 2, 3]


async def test_an_engine_that_records_the_first_rank_gets_no_other(stream: WorkerStream) -> None:
    """PLACE on NEW, with the id; WITHHOLD on RETAINED, with the id and without a rank."""
    (first,) = await stream.enrich(_make_request(engine=RECORDING_ENGINE))
    (second,) = await stream.enrich(_make_request(engine=RECORDING_ENGINE), finishes=(make_finish(first),))
    assert (first.rank_directive, first.placement, first.hints.dp_rank) == (PLACE, NEW, PREFERRED)
    assert (second.rank_directive, second.placement) == (WITHHOLD, RETAINED)
    assert not second.hints.HasField("dp_rank")
    assert first.hints.conversation_id == second.hints.conversation_id == CONVERSATION


async def test_an_engine_that_was_started_again_has_no_conversation_yet(stream: WorkerStream) -> None:
    """Its KV cache is empty, so a conversation is placed anew there."""
    restarted = types_pb2.EngineProfile()
    restarted.CopyFrom(BALANCING_ENGINE)
    restarted.instance_id = "balancing-again"
    await stream.open(BALANCING_ENGINE, restarted)
    placements, finishes = [], []
    for engine in (BALANCING_ENGINE, BALANCING_ENGINE, restarted, restarted):
        request = _make_request(engine=None, engine_instance=engine.instance_id)
        (decision,) = await stream.enrich(request, finishes=finishes)
        placements.append(decision.placement)
        finishes = [make_finish(decision)]
    assert placements == [NEW, RETAINED, NEW, RETAINED]


async def test_a_rank_that_the_worker_remembers_is_adopted(hints: HintsStub) -> None:
    """A restarted sidecar learns its table back."""
    decision = await hints.Enrich(_make_request(known_rank=3))
    assert (decision.hints.dp_rank, decision.placement) == (3, RETAINED)


@pytest.mark.parametrize(
    ("when", "rank", "kept"), [("router_rank_absent", None, "router"), ("always", 1, "sidecar")]
)
async def test_disagreement_with_the_router_is_counted(
    when: str,
    rank: int | None,
    kept: str,
    start_sidecar: Callable[..., Awaitable[SidecarServer]],
    open_channel: OpenChannel,
) -> None:
    """Whoever owns the rank, the other's choice is counted where it differs."""
    server = await start_sidecar(f"operational: {{placement: {{when: {when}}}}}")
    channel = await open_channel(server.target)
    hints = HintsStub(channel)
    await hints.Enrich(_make_request())
    for router_rank in (PREFERRED, 2):
        decision = await hints.Enrich(_make_request(hints=types_pb2.RoutingHints(dp_rank=router_rank)))
        assert (decision.hints.dp_rank if decision.hints.HasField("dp_rank") else None) == rank
    assert await read_metric(AdminStub(channel), "router_rank_disagreement") == {kept: 1}


async def test_placement_pauses_on_an_engine_that_does_not_honor_it(
    stream: WorkerStream, admin: AdminStub
) -> None:
    """After eleven of 200 elsewhere the router's rank is forwarded; notice, counter and gauge say so."""
    for number in range(11):
        (decision,) = await stream.enrich(_make_request(f"some-conversation-{number}"))
        elsewhere = (decision.hints.dp_rank + 1) % 4
        (after,) = await stream.enrich(
            _make_request("the-one-after-it"), finishes=(make_finish(decision, observed_dp_rank=elsewhere),)
        )
    assert (after.rank_directive, after.placement) == (types_pb2.RANK_DIRECTIVE_FORWARD, NONE)
    assert list(after.notices) == ["placement-not-honored"]
    assert await read_metric(admin, "placement_pauses") == {"prefill": 1}
    assert await read_metric(admin, "placement_paused") == {"prefill": 1}


async def test_a_request_that_a_worker_sends_again_after_a_reconnect_counts_once(
    hints: HintsStub, admin: AdminStub
) -> None:
    """It replaces its first attempt, whose late finish report frees nothing."""
    first, second = WorkerStream(hints), WorkerStream(hints)
    (before,) = await first.enrich(_make_request(request_id="r"))
    first.close()
    (after,) = await second.enrich(_make_request(request_id="r"))
    assert (after.hints.dp_rank, after.placement) == (before.hints.dp_rank, NEW)
    assert await sum_metric(admin, "placement_outstanding_tokens") == 1_000
    await second.enrich(_make_request("x" * 20, prompt_tokens=1), finishes=(make_finish(before),))
    assert await sum_metric(admin, "placement_outstanding_tokens") == 1_001
    await second.enrich(_make_request("y" * 20, prompt_tokens=1), finishes=(make_finish(after),))
    assert await sum_metric(admin, "placement_outstanding_tokens") == 2
    second.close()


async def test_conversations_are_listed_by_hash_with_rank_and_load_and_no_id(
    admin: AdminStub, stream: WorkerStream
) -> None:
    (decision,) = await stream.enrich(_make_request(tenant="tenant-a", model="m"))
    await stream.enrich(
        _make_request(tenant="tenant-a", prompt_tokens=1_200), finishes=(make_finish(decision),)
    )
    listed = await admin.ListConversations(admin_pb2.ListConversationsRequest())
    (shown,) = listed.conversations
    assert listed.next_page_token == ""
    assert shown.conversation_hash == decision.conversation_hash
    assert (shown.worker_id, shown.instance_id, shown.model) == ("w", "balancing", "m")
    assert (shown.phase, shown.dp_rank) == (types_pb2.PHASE_PREFILL, decision.hints.dp_rank)
    assert (shown.in_flight, shown.resident_tokens) == (1, 1_000)
    assert shown.idle.ToNanoseconds() >= 0
    text = str(listed)
    assert CONVERSATION not in text
    assert "tenant-a" not in text


async def test_pages_list_every_conversation_once_from_the_latest_use_backwards(
    admin: AdminStub, hints: HintsStub
) -> None:
    hashes = []
    for number in range(7):
        worker = "w" if number % 2 else "v"
        hashes.append(
            (await hints.Enrich(_make_request(f"conversation-{number}", worker_id=worker))).conversation_hash
        )
    pages, token = [], ""
    for _ in range(3):
        page = await admin.ListConversations(
            admin_pb2.ListConversationsRequest(page_size=3, page_token=token)
        )
        pages.append([shown.conversation_hash for shown in page.conversations])
        token = page.next_page_token
    assert token == ""
    assert pages == [hashes[6:3:-1], hashes[3:0:-1], hashes[:1]]
    only = await admin.ListConversations(admin_pb2.ListConversationsRequest(worker_id="w"))
    assert [shown.conversation_hash for shown in only.conversations] == hashes[5::-2]


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "9" * 21, "²"])
async def test_a_token_that_no_page_gave_is_refused(token: str, admin: AdminStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.ListConversations(admin_pb2.ListConversationsRequest(page_token=token))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "page_token: is not a valid page token"


async def test_an_ended_conversation_is_forgotten_in_every_phase(admin: AdminStub, hints: HintsStub) -> None:
    """And ending it again is no error."""
    for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_AGGREGATED):
        await hints.Enrich(_make_request(phase=phase))
    name = {"conversation_hash": CONVERSATION_HASH}
    shown = await admin.GetConversation(admin_pb2.GetConversationRequest(**name))
    assert sorted(entry.phase for entry in shown.conversations) == [1, 3]
    replies = [await admin.EndConversation(admin_pb2.EndConversationRequest(**name)) for _ in range(2)]
    assert [reply.ended for reply in replies] == [2, 0]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.GetConversation(admin_pb2.GetConversationRequest(**name))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (await hints.Enrich(_make_request())).placement == NEW


async def test_a_last_request_ends_its_conversation_when_it_finishes(
    stream: WorkerStream, admin: AdminStub
) -> None:
    """And not before: it still runs on its rank."""

    async def list_known() -> list[str]:
        page = await admin.ListConversations(admin_pb2.ListConversationsRequest())
        return [conversation.conversation_hash for conversation in page.conversations]

    final = {"x-session-id": CONVERSATION, "x-dynamo-session-final": "true"}
    (first,) = await stream.enrich(_make_request())
    (last,) = await stream.enrich(
        _make_request(identity=types_pb2.Identity(headers=final)), finishes=(make_finish(first),)
    )
    assert (last.placement, "session-final" in last.notices) == (RETAINED, True)
    assert await list_known() == [CONVERSATION_HASH]
    (other,) = await stream.enrich(_make_request("another"), finishes=(make_finish(last),))
    assert await list_known() == [other.conversation_hash]
    assert await read_metric(admin, "ended_conversations") == {"true": 1}
