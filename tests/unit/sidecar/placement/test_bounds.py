"""What placement forgets, and when: bounds, idle time and decay."""

from __future__ import annotations

import tracemalloc

import pytest

from sidecar.model import Decision
from sidecar.placement.engine_phase import MAX_LEGS
from sidecar.placement.lease import MAX_LEASES
from tests.support.placement_world import World


def test_the_conversation_used_longest_ago_is_evicted() -> None:
    """A full table makes room for a new conversation by forgetting the oldest use."""
    world = World(max_conversations=3)
    for name in ("a", "b", "c", "a", "d"):
        world.run(name)
    assert [entry.conversation for entry in world.placement.table] == ["d", "a", "c"]
    assert world.counted("conversations_forgotten") == {"evicted": 1}


def test_a_request_in_flight_keeps_its_entry() -> None:
    """Eviction spares the oldest conversation while it runs."""
    world = World(max_conversations=2)
    world.ask("flying")
    for name in ("a", "b", "c"):
        world.run(name)
    assert {entry.conversation for entry in world.placement.table} == {"flying", "c"}


def test_a_table_full_of_requests_in_flight_evicts_all_the_same() -> None:
    """The bound holds whatever happens, and a new conversation is never refused."""
    world = World(max_conversations=2)
    asked = [world.ask(name) for name in ("a", "b", "c")]
    assert len(world.placement.table) == 2
    assert "c" in {entry.conversation for entry in world.placement.table}
    for one in asked:
        assert one is not None
        one.finish(observed=one.rank)
    assert world.outstanding() == [0, 0, 0, 0]
    assert sum(world.resident()) == 2_000


@pytest.mark.parametrize(("idle_s", "decision"), [(3_600, Decision.RETAINED), (3_601, Decision.NEW)])
def test_an_idle_conversation_is_forgotten(idle_s: float, decision: Decision) -> None:
    """After the idle TTL it is new, in a look as in an answer."""
    world = World(idle_ttl_s=3_600.0)
    world.run("c")
    world.now_s += idle_s
    peeked = world.peek("c")
    assert peeked is not None
    assert peeked[1] is decision
    asked = world.ask("c")
    assert asked is not None
    assert asked.decision is decision


def test_use_keeps_a_conversation() -> None:
    """The TTL runs from the last use, not from the first."""
    world = World(idle_ttl_s=100.0)
    for _ in range(5):
        world.run("c")
        world.now_s += 90
    peeked = world.peek("c")
    assert peeked is not None
    assert peeked[1] is Decision.RETAINED


def test_flying_is_use() -> None:
    """A conversation with a request in flight is not idle, however long that takes."""
    world = World(idle_ttl_s=100.0)
    world.run("c")
    flying = world.ask("c")
    assert flying is not None
    world.now_s += 500
    world.run("other")
    flying.finish(observed=flying.rank)
    peeked = world.peek("c")
    assert peeked is not None
    assert peeked[1] is Decision.RETAINED


@pytest.mark.parametrize(("idle_s", "left"), [(0, 8_000), (600, 4_000), (1_200, 2_000), (1_800, 1_000)])
def test_idle_tokens_count_less_and_less(idle_s: float, left: float) -> None:
    """What a conversation keeps halves every ten minutes."""
    world = World()
    home = world.run("c", 8_000).rank
    world.now_s += idle_s
    assert world.resident()[home] == pytest.approx(left)


def test_the_load_is_gone_with_the_conversations() -> None:
    """When all are forgotten nothing is resident, exactly."""
    world = World()
    for number in range(20):
        world.run(f"c{number}", 1_000 + number * 7)
        world.now_s += 13.7
    world.now_s += 4_000
    world.placement.expire(world.settings)
    assert len(world.placement.table) == 0
    assert list(world.placement.legs) == []


def test_an_idle_engine_is_forgotten() -> None:
    """A worker that is gone leaves nothing behind."""
    world = World()
    world.run("", worker="gone")
    world.now_s += 3_601
    world.run("")
    assert [leg.key.worker_id for leg in world.placement.legs] == ["w"]


def test_the_number_of_engines_is_bounded() -> None:
    """Engines without end push out the one used longest ago, with its conversations."""
    world = World()
    for number in range(MAX_LEGS + 5):
        world.run("c", instance=f"i{number}")
    assert len(list(world.placement.legs)) == MAX_LEGS
    assert len(world.placement.table) == MAX_LEGS


def test_the_number_of_requests_in_flight_is_bounded() -> None:
    """A peer that ends nothing loses its oldest leases."""
    world = World()
    for _ in range(MAX_LEASES + 10):
        world.ask("", 1)
    assert sum(world.outstanding()) == MAX_LEASES
    assert world.counted("leases_closed") == {"expired": 10}


def test_a_conversation_takes_half_a_kilobyte() -> None:
    """A full table of the default size stays within 32 MiB, keys and hashes included."""
    world = World(max_conversations=2_000)
    world.run("warm-up")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            world.ask(f"{number:016x}", tenant=f"tenant-{number}", unary=True)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(world.placement.table) == 2_000
    assert (after - before) / 2_000 < 512
