"""Engine profiles of a stream: sent once, referred to by their instance, replaced, and bounded."""

from __future__ import annotations

from functools import partial

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.messages import (
    BALANCING_ENGINE,
    PINNING_ENGINE,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_request,
)
from tests.support.sidecar import SidecarServer

FORWARD, WITHHOLD, PLACE = (
    types_pb2.RANK_DIRECTIVE_FORWARD,
    types_pb2.RANK_DIRECTIVE_WITHHOLD,
    types_pb2.RANK_DIRECTIVE_PLACE,
)
_make_pinned = partial(make_request, engine_instance=PINNING_ENGINE.instance_id)


async def test_an_engine_is_sent_once_and_later_requests_refer_to_it(stream: WorkerStream) -> None:
    await stream.open(PINNING_ENGINE, BALANCING_ENGINE)
    for _ in range(2):
        pinned, placed, unknown = await stream.enrich(
            make_request(engine_instance=PINNING_ENGINE.instance_id),
            make_request(engine_instance=BALANCING_ENGINE.instance_id),
            make_request(),
        )
        assert [one.rank_directive for one in (pinned, placed, unknown)] == [WITHHOLD, PLACE, FORWARD]
        assert list(unknown.notices) == ["adp-router-unknown"]


async def test_an_engine_counts_for_the_items_of_its_own_message(stream: WorkerStream) -> None:
    (decision,) = await stream.enrich(_make_pinned(), engines=[PINNING_ENGINE])
    assert decision.rank_directive == WITHHOLD


async def test_an_unknown_engine_instance_is_an_error_until_its_profile_comes(stream: WorkerStream) -> None:
    await stream.open(BALANCING_ENGINE)
    (refused,) = await stream.exchange(_make_pinned())
    assert refused.error.code == service_pb2.ERROR_CODE_INVALID_ARGUMENT
    assert refused.error.field == "engine_instance"
    (decision,) = await stream.enrich(_make_pinned(), engines=[PINNING_ENGINE])
    assert decision.rank_directive == WITHHOLD


async def test_an_engine_belongs_to_its_stream(
    sidecar: SidecarServer, stream: WorkerStream, open_channel: OpenChannel
) -> None:
    """A worker that reconnects sends its engines again; nothing of another stream is used in their place."""
    await stream.open(PINNING_ENGINE)
    other = WorkerStream(HintsStub(await open_channel(sidecar.target)))
    await other.open()
    (refused,) = await other.exchange(_make_pinned())
    assert refused.error.field == "engine_instance"
    other.close()


async def test_the_same_instance_again_replaces_the_engine(stream: WorkerStream) -> None:
    """As when a worker's settings change while its engine goes on."""
    await stream.open(PINNING_ENGINE)
    replaced = types_pb2.EngineProfile()
    replaced.CopyFrom(PINNING_ENGINE)
    replaced.rank_source = types_pb2.RANK_SOURCE_ROUTER
    before = await stream.enrich(_make_pinned())
    after = await stream.enrich(_make_pinned(), engines=[replaced])
    last = await stream.enrich(_make_pinned())
    assert [one.rank_directive for one in (*before, *after, *last)] == [WITHHOLD, FORWARD, FORWARD]


async def test_a_profile_in_the_request_wins_over_its_engine_instance(stream: WorkerStream) -> None:
    await stream.open(PINNING_ENGINE)
    decisions = await stream.enrich(
        _make_pinned(engine=BALANCING_ENGINE), make_request(engine=BALANCING_ENGINE, engine_instance="other")
    )
    assert [one.rank_directive for one in decisions] == [PLACE, PLACE]


async def test_a_stream_keeps_the_64_engines_that_were_used_last(stream: WorkerStream) -> None:
    """So that a worker whose engine restarts again and again fills nothing."""

    def make_engines(*numbers: int) -> list[types_pb2.EngineProfile]:
        return [types_pb2.EngineProfile(instance_id=f"start-{number}", dp_size=2) for number in numbers]

    await stream.open(*make_engines(*range(64)))
    await stream.enrich(make_request(engine_instance="start-0"))
    requests = [make_request(engine_instance=f"start-{number}") for number in (0, 1, 2, 64)]
    results = await stream.exchange(*requests, engines=make_engines(64))
    assert [result.error.field for result in results] == ["", "engine_instance", "", ""]
