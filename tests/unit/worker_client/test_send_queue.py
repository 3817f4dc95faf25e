"""What waits to be sent and for a response: bounds, order, and engines once per stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from tests.support.builders import ENGINE, WITHHOLD, build_decision, build_pending, build_profile
from worker_client import EngineProfile, _metrics
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest
from worker_client._request import RequestFacts
from worker_client._send_queue import MAX_FINISHES, MAX_WAITING, SendQueue

POLICY = ClientPolicy()
APPLIED = build_decision(WITHHOLD, "c", reusable=True)


@dataclass
class QueueHarness:
    """A queue on its first stream, and what it counted and reported."""

    store: MetricStore = field(default_factory=lambda: MetricStore(_metrics.TABLE))
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = SendQueue(self.store, self.errors.append)
        self.queue.begin_stream()

    def send(self, *engines: EngineProfile) -> service_pb2.EnrichStreamRequest:
        """The message that sends one request of each engine."""
        for engine in engines:
            assert self.queue.add_request(build_pending(engine=engine))
        return self.queue.next_batch(POLICY)

    def fill(self) -> list[PendingRequest]:
        """As many requests as there is room for, all of them sent."""
        requests = [build_pending() for _ in range(MAX_WAITING)]
        assert all(self.queue.add_request(pending) for pending in requests)
        while not self.queue.is_empty:
            self.queue.next_batch(POLICY)
        return requests

    def send_one(self) -> PendingRequest:
        """A request that was sent."""
        pending = build_pending()
        assert self.queue.add_request(pending)
        self.queue.next_batch(POLICY)
        return pending

    def add_finish(self, pending: PendingRequest, number: int) -> None:
        finish = service_pb2.Finish(request_id=str(number))
        self.queue.add_finish(pending, finish, is_stream_up=True)


@pytest.fixture
def harness() -> QueueHarness:
    return QueueHarness()


def list_instances(message: service_pb2.EnrichStreamRequest) -> list[str]:
    return [engine.instance_id for engine in message.engines]


async def test_pending_requests_are_bounded(harness: QueueHarness) -> None:
    """While somebody waits for each of them, the next request is decided without the sidecar."""
    harness.fill()
    assert not harness.queue.add_request(build_pending())


async def test_a_request_that_nobody_waits_for_gives_up_its_place(harness: QueueHarness) -> None:
    """A sidecar that responds to some requests only does not stop the others in the end."""
    requests = harness.fill()
    for timed_out in requests[1:]:
        timed_out.settle(None)
    assert harness.queue.add_request(build_pending())
    assert harness.queue.take(requests[1].seq) is None
    assert harness.queue.take(requests[0].seq) is requests[0]


async def test_finish_reports_go_out_before_the_requests_that_came_after_them(harness: QueueHarness) -> None:
    """A request is decided by the load that they free, so they must not wait for a later message."""
    sent = harness.send_one()
    for number in range(200):
        harness.add_finish(sent, number)
    batch = harness.send(ENGINE)
    assert (len(batch.items), len(batch.finishes)) == (1, 200)


async def test_a_flood_of_finish_reports_is_bounded_and_the_oldest_are_lost(harness: QueueHarness) -> None:
    pending = harness.send_one()
    for number in range(MAX_FINISHES + 3):
        harness.add_finish(pending, number)
    finishes = harness.queue.finishes
    assert (len(finishes), finishes[0].request_id, finishes[-1].request_id) == (65_536, "3", "65538")
    assert _metrics.read_stats(harness.store) == {"finishes_lost": {"": 3}}


async def test_finish_reports_that_could_not_be_sent_are_sent_first(harness: QueueHarness) -> None:
    pending = harness.send_one()
    for number in range(300):
        harness.add_finish(pending, number)
    lost = harness.queue.next_batch(POLICY)
    assert len(lost.finishes) == 256
    harness.queue.put_back(lost)
    sent = [finish.request_id for _ in range(2) for finish in harness.queue.next_batch(POLICY).finishes]
    assert sent == [str(number) for number in range(300)]
    assert _metrics.read_stats(harness.store) == {}


async def test_a_finish_report_names_its_item_on_the_stream_that_the_item_was_sent_on(
    harness: QueueHarness,
) -> None:
    sent = harness.send_one()
    harness.add_finish(sent, 0)
    assert [finish.seq for finish in harness.queue.finishes] == [sent.seq]
    harness.queue.end_stream()
    harness.queue.begin_stream()
    harness.add_finish(sent, 1)
    assert [finish.seq for finish in harness.queue.finishes] == [0, 0]


async def test_a_finish_report_that_comes_before_its_item_is_sent_in_a_later_message(
    harness: QueueHarness,
) -> None:
    """The sidecar takes the finish reports of a message before its items."""
    applied = build_pending(applied=APPLIED)
    harness.queue.add_request(applied)
    harness.add_finish(applied, 7)
    first, second = harness.queue.next_batch(POLICY), harness.queue.next_batch(POLICY)
    assert ([item.seq for item in first.items], list(first.finishes)) == ([1], [])
    assert [(finish.request_id, finish.seq) for finish in second.finishes] == [("7", 1)]


async def test_an_applied_request_without_room_is_reported_as_dropped_by_its_carrier(
    harness: QueueHarness,
) -> None:
    harness.fill()
    for _ in range(2):
        assert not harness.queue.add_request(build_pending(applied=APPLIED))
    message = harness.queue.next_batch(POLICY)
    assert [(dropped.source_detail, dropped.count) for dropped in message.dropped] == [
        ("agent_context.session_id", 2)
    ]
    assert _metrics.read_stats(harness.store) == {"reuse_dropped": {"agent_context": 2}}


async def test_dropped_requests_are_reported_again_where_their_message_could_not_be_sent(
    harness: QueueHarness,
) -> None:
    harness.fill()
    harness.queue.add_request(build_pending(applied=APPLIED))
    harness.queue.put_back(harness.queue.next_batch(POLICY))
    harness.queue.add_request(build_pending(applied=APPLIED))
    assert [dropped.count for dropped in harness.queue.next_batch(POLICY).dropped] == [2]


async def test_dropped_requests_of_more_carriers_than_a_message_may_name_are_reported_in_the_next_one(
    harness: QueueHarness,
) -> None:
    harness.fill()
    for number in range(257):
        harness.queue.add_request(build_pending(applied=replace(APPLIED, source_detail=f"header:x-{number}")))
    assert [len(harness.queue.next_batch(POLICY).dropped) for _ in range(3)] == [256, 1, 0]


async def test_a_request_that_waited_in_vain_for_room_is_not_reported_as_dropped(
    harness: QueueHarness,
) -> None:
    """Nothing that the sidecar decides was applied to it."""
    harness.fill()
    assert not harness.queue.add_request(build_pending())
    assert list(harness.queue.next_batch(POLICY).dropped) == []


async def test_a_dropped_request_has_no_finish_report(harness: QueueHarness) -> None:
    """It has no item, so its report would free nothing."""
    harness.fill()
    dropped = build_pending(applied=APPLIED)
    harness.queue.add_request(dropped)
    harness.add_finish(dropped, 0)
    assert list(harness.queue.next_batch(POLICY).finishes) == []


async def test_an_applied_request_that_the_lost_stream_did_not_take_is_reported_on_the_next_one(
    harness: QueueHarness,
) -> None:
    harness.queue.add_request(build_pending(applied=APPLIED))
    harness.queue.end_stream()
    harness.queue.release_all()
    harness.queue.begin_stream()
    message = harness.queue.next_batch(POLICY)
    assert (len(message.items), [dropped.count for dropped in message.dropped]) == (0, [1])


async def test_an_engine_is_sent_with_its_first_request_of_a_stream_only(harness: QueueHarness) -> None:
    first, second, third = harness.send(ENGINE, ENGINE), harness.send(ENGINE), harness.send(ENGINE)
    assert [list_instances(message) for message in (first, second, third)] == [["engine-1"], [], []]
    assert first.engines[0].dp_size == 4
    items = [item for message in (first, second, third) for item in message.items]
    assert {item.request.engine_instance for item in items} == {"engine-1"}
    assert not any(item.request.HasField("engine") for item in items)


async def test_a_new_stream_is_sent_every_engine_again(harness: QueueHarness) -> None:
    harness.send(ENGINE)
    harness.queue.end_stream()
    harness.queue.begin_stream()
    assert list_instances(harness.send(ENGINE, build_profile(instance_id="engine-2"))) == [
        "engine-1",
        "engine-2",
    ]


async def test_another_profile_of_the_same_instance_is_sent_again(harness: QueueHarness) -> None:
    harness.send(ENGINE)
    message = harness.send(build_profile(dp_size=8))
    assert [(engine.instance_id, engine.dp_size) for engine in message.engines] == [("engine-1", 8)]


async def test_an_engine_beyond_the_64_that_the_sidecar_keeps_is_sent_again(harness: QueueHarness) -> None:
    engines = [build_profile(instance_id=f"engine-{number}") for number in range(65)]
    for engine in engines:
        assert list_instances(harness.send(engine)) == [engine.instance_id]
    assert list_instances(harness.send(engines[-1])) == []
    assert list_instances(harness.send(engines[0])) == ["engine-0"]


async def test_a_request_whose_engine_the_sidecar_lacks_is_sent_again_once_with_its_engine(
    harness: QueueHarness,
) -> None:
    refused = build_pending()
    harness.queue.add_request(refused)
    first = harness.queue.next_batch(POLICY)
    assert harness.queue.take(first.items[0].seq) is refused
    assert harness.queue.resend_with_engine(refused)
    again = harness.queue.next_batch(POLICY)
    assert list_instances(again) == ["engine-1"]
    assert [item.seq for item in again.items] == [refused.seq] != [first.items[0].seq]
    assert harness.queue.take(refused.seq) is refused
    assert not harness.queue.resend_with_engine(refused)
    assert harness.queue.is_empty


async def test_a_request_that_nobody_waits_for_is_not_sent_again(harness: QueueHarness) -> None:
    harness.send(ENGINE)
    gone = build_pending()
    gone.settle(None)
    assert not harness.queue.resend_with_engine(gone)


async def test_the_engine_of_a_refused_request_that_nobody_waits_for_is_sent_with_the_next_one(
    harness: QueueHarness,
) -> None:
    """Otherwise a sidecar that is slower than every deadline lacks the engine for ever."""
    harness.send(ENGINE)
    timed_out = build_pending()
    timed_out.settle(None)
    harness.queue.resend_with_engine(timed_out)
    assert list_instances(harness.send(ENGINE)) == ["engine-1"]


async def test_a_request_that_can_not_be_encoded_is_released_and_harms_no_other(
    harness: QueueHarness,
) -> None:
    unencodable = build_pending(RequestFacts(model="lone \ud800"))
    others = [build_pending(), build_pending()]
    for pending in (others[0], unencodable, others[1]):
        harness.queue.add_request(pending)
    batch = harness.queue.next_batch(POLICY)
    assert [item.seq for item in batch.items] == [pending.seq for pending in others]
    assert unencodable.is_over
    assert not unencodable.is_sent
    assert [type(error) for error in harness.errors] == [UnicodeEncodeError]


@pytest.mark.parametrize("instance_id", ["", "e" * 257, "lone \ud800"], ids=ascii)
async def test_an_instance_id_that_the_wire_can_not_carry_is_hashed_and_harms_no_other(
    instance_id: str, harness: QueueHarness
) -> None:
    message = harness.send(build_profile(instance_id=instance_id), ENGINE)
    assert harness.errors == []
    odd, plain = list_instances(message)
    assert (len(odd), plain) == (32, "engine-1")
    assert [item.request.engine_instance for item in message.items] == [odd, plain]
    service_pb2.EnrichStreamRequest.FromString(message.SerializeToString())
