"""Engine profiles on the stream: each is sent once, again where the sidecar lacks it, and not for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import ENGINE, build_profile
from tests.support.scripted_sidecar import (
    Stream,
    behave,
    build_refusal,
    build_result,
    connect,
    plan_until,
    poll,
    request_plan,
)
from worker_client import EngineProfile, EngineSource, Origin, RoutingHintClient

SECOND = build_profile(instance_id="engine-2", dp_size=8)
LACKED = "engine_instance"


def list_instances(*messages: service_pb2.EnrichStreamRequest) -> list[str]:
    """The instance of every engine profile in these messages."""
    return [engine.instance_id for message in messages for engine in message.engines]


class ForgetfulSidecar:
    """Keeps engine profiles as the contract says, until a test makes it forget them."""

    def __init__(self) -> None:
        self.instances: set[str] = set()

    async def converse(self, stream: Stream) -> None:
        await stream.greet()
        while message := await stream.read():
            self.instances.update(list_instances(message))
            if message.items:
                await stream.write(*map(self.decide, message.items))

    def decide(self, item: service_pb2.EnrichItem) -> service_pb2.EnrichResult:
        is_known = item.request.engine_instance in self.instances
        return build_result(item) if is_known else build_refusal(item, LACKED)


async def refuse_all(stream: Stream) -> None:
    """Lacks every engine, whatever the client sends."""
    await stream.greet()
    while items := await stream.read_items():
        await stream.write(*(build_refusal(item, LACKED) for item in items))


async def request_plans(client: RoutingHintClient, *engines: EngineSource) -> list[Origin]:
    """Who decided about one request of each engine, one after the other."""
    return [(await request_plan(client, engine=engine)).decision.origin for engine in engines]


async def test_each_engine_is_sent_once_per_stream_with_its_first_request(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plans(client, ENGINE, ENGINE, SECOND, ENGINE, SECOND)
    with_engines = [message for message in sidecar.messages if message.engines]
    assert [list_instances(message) for message in with_engines] == [["engine-1"], ["engine-2"]]
    assert with_engines[1].engines[0] == types_pb2.EngineProfile(
        instance_id="engine-2",
        dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
        adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
        dp_size=8,
    )
    assert [item.request.engine_instance for item in with_engines[0].items] == ["engine-1"]
    named = [item.request.engine_instance for item in sidecar.items]
    assert named == ["engine-1", "engine-1", "engine-2", "engine-1", "engine-2"]
    assert not any(item.request.HasField("engine") for item in sidecar.items)


async def test_requests_of_several_engines_share_a_message(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        engines = (SECOND, ENGINE, build_profile(instance_id="engine-3"), SECOND)
        plans = await asyncio.gather(*(request_plan(client, engine=engine) for engine in engines))
    assert {plan.reason for plan in plans} == {""}
    assert sidecar.batch_sizes == [1, 4]
    assert list_instances(sidecar.messages[-1], sidecar.messages[-2])[:2] == ["engine-2", "engine-3"]


async def test_a_new_stream_is_sent_the_engines_again(tmp_path: Path) -> None:
    async def end_after_two(stream: Stream) -> None:
        await stream.greet()
        for _ in range(2):
            await stream.write(*map(build_result, await stream.read_items()))

    async with connect(tmp_path / "s", end_after_two) as (sidecar, client):
        await request_plans(client, ENGINE, ENGINE)
        sidecar.converse = behave
        await poll(
            "a decision on the second stream",
            lambda: request_plan(client),
            lambda plan: len(sidecar.streams) == 2 and not plan.reason,
            lambda plan: plan.reason,
        )
        await request_plan(client)
    assert [list_instances(*stream.messages) for stream in sidecar.streams] == [["engine-1"], ["engine-1"]]


async def test_a_request_whose_engine_the_sidecar_lacks_is_sent_again_with_it(tmp_path: Path) -> None:
    """As after 64 other engines on the same stream; its caller does not notice."""
    forgetful = ForgetfulSidecar()
    async with connect(tmp_path / "s", forgetful.converse) as (sidecar, client):
        await request_plan(client, "first")
        forgetful.instances.clear()
        plan = await request_plan(client, "again")
        await request_plan(client, "after")
        stats = client.stats()
    assert (plan.decision.origin, plan.conversation_id) == (Origin.SIDECAR, "sidecar:again")
    assert sidecar.session_ids == ["first", "again", "again", "after"]
    assert [list_instances(message) for message in sidecar.messages if message.items] == [
        ["engine-1"],
        [],
        ["engine-1"],
        [],
    ]
    assert len({item.seq for item in sidecar.items}) == 4
    assert "refused_items" not in stats
    assert "fail_open" not in stats


async def test_requests_that_were_refused_together_send_their_engine_once(tmp_path: Path) -> None:
    forgetful = ForgetfulSidecar()
    async with connect(tmp_path / "s", forgetful.converse) as (sidecar, client):
        await request_plan(client, "first")
        forgetful.instances.clear()
        plans = await asyncio.gather(*(request_plan(client, f"together-{n}") for n in range(5)))
    assert {plan.reason for plan in plans} == {""}
    assert [plan.conversation_id for plan in plans] == [f"sidecar:together-{n}" for n in range(5)]
    assert list_instances(*sidecar.messages) == ["engine-1", "engine-1"]
    assert sidecar.batch_sizes == [1, 5, 5]


async def test_the_finish_report_of_a_request_that_was_sent_again_names_the_second_item(
    tmp_path: Path,
) -> None:
    forgetful = ForgetfulSidecar()
    async with connect(tmp_path / "s", forgetful.converse) as (sidecar, client):
        await request_plan(client)
        forgetful.instances.clear()
        await request_plan(client)
    assert [finish.seq for finish in sidecar.finishes] == [1, 3]
    assert [finish.decision_id for finish in sidecar.finishes] == ["d-1", "d-3"]


async def test_a_sidecar_that_keeps_refusing_an_engine_is_sent_each_request_twice_and_no_more(
    tmp_path: Path,
) -> None:
    async with connect(tmp_path / "s", refuse_all) as (sidecar, client):
        plans = [await request_plan(client, session_id) for session_id in ("first", "second")]
        stats = client.stats()
    assert sidecar.session_ids == ["first", "first", "second", "second"]
    assert [plan.reason for plan in plans] == ["no-response"] * 2
    assert [(plan.decision.origin, plan.conversation_id) for plan in plans] == [
        (Origin.LOCAL_RULE, "first"),
        (Origin.LOCAL_RULE, "second"),
    ]
    assert stats["refused_items"] == {"invalid_argument": 2}
    assert stats["fail_open"] == {"no-response": 2}
    assert len(sidecar.finishes) == 2
    assert len(sidecar.streams) == 1


async def test_a_sidecar_that_lacks_one_engine_decides_for_the_others(tmp_path: Path) -> None:
    async def refuse_second(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            for item in items:
                is_lacked = item.request.engine_instance == "engine-2"
                await stream.write(build_refusal(item, LACKED) if is_lacked else build_result(item))

    async with connect(tmp_path / "s", refuse_second) as (_, client):
        origins = await request_plans(client, ENGINE, SECOND, ENGINE, SECOND)
    assert origins == [Origin.SIDECAR, Origin.LOCAL_RULE] * 2


@pytest.mark.parametrize("instance_id", ["", "e" * 257, "lone \ud800"], ids=ascii)
async def test_an_instance_id_that_the_wire_can_not_carry_harms_no_request(
    tmp_path: Path, instance_id: str
) -> None:
    forgetful = ForgetfulSidecar()
    odd = build_profile(instance_id=instance_id)
    async with connect(tmp_path / "s", forgetful.converse) as (sidecar, client):
        await request_plan(client)
        plans = await asyncio.gather(*(request_plan(client, engine=engine) for engine in (odd, ENGINE, odd)))
        stats = client.stats()
    assert [plan.decision.origin for plan in plans] == [Origin.SIDECAR] * 3
    assert {len(item.request.engine_instance) for item in sidecar.items} == {len("engine-1"), 32}
    assert (len(sidecar.streams), len(sidecar.items)) == (1, 4)
    assert not {"internal_errors", "refused_items"} & set(stats)


async def test_another_engine_of_a_lazy_profile_is_sent_and_nothing_of_the_old_one_is_recalled(
    tmp_path: Path,
) -> None:
    """Its cache is empty, so neither a rank nor a decision of the old one holds."""
    is_responding = asyncio.Event()
    is_responding.set()

    async def place(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            if not is_responding.is_set():
                continue
            for item in items:
                result = build_result(item)
                result.response.rank_directive = types_pb2.RANK_DIRECTIVE_PLACE
                result.response.hints.dp_rank = 3
                await stream.write(result)

    def build_llm() -> SimpleNamespace:
        args = {"backend": "pytorch", "tensor_parallel_size": 4, "enable_attention_dp": True}
        return SimpleNamespace(args=SimpleNamespace(**args))

    llm = build_llm()
    source = EngineProfile.lazy(lambda: llm)
    async with connect(tmp_path / "s", place, known_timeout_s=0.01, unknown_timeout_s=1.0) as (
        sidecar,
        client,
    ):
        await plan_until(client, "")
        first, again = [await request_plan(client, engine=source) for _ in range(2)]
        is_responding.clear()
        recalled = await request_plan(client, engine=source)
        llm = build_llm()
        other = await request_plan(client, engine=source)
    assert [plan.decision.origin for plan in (first, again)] == [Origin.SIDECAR] * 2
    assert (recalled.decision.origin, recalled.decision.dp_rank) == (Origin.MEMORY, 3)
    assert (other.decision.origin, other.decision.dp_rank) == (Origin.LOCAL_RULE, None)
    *_, old, new = sidecar.items
    assert old.request.engine_instance != new.request.engine_instance
    assert (old.request.known_rank, new.request.HasField("known_rank")) == (3, False)
    assert list_instances(*sidecar.messages)[-2:] == [
        old.request.engine_instance,
        new.request.engine_instance,
    ]
