"""How long a request waits for a sidecar that is late, hung or wrong, and what it goes on with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from routing_hints.v1 import service_pb2
from tests.support.scripted_sidecar import (
    Stream,
    build_refusal,
    build_result,
    connect,
    plan_until,
    poll,
    request_plan,
)
from worker_client import Origin, Plan


class SwitchedSidecar:
    """Responds while `is_on` is set; what came meanwhile it decides about when switched on again."""

    def __init__(self) -> None:
        self.is_on = asyncio.Event()
        self.is_on.set()

    async def converse(self, stream: Stream) -> None:
        await stream.greet()
        while message := await stream.read():
            await self.is_on.wait()
            if message.items:
                await stream.write(*map(build_result, message.items))


async def test_each_deadline_holds_against_a_sidecar_that_never_responds(tmp_path: Path) -> None:
    """Known conversations go on after the short one, others after the long one: by the loop's own clock."""
    switch, events = SwitchedSidecar(), []

    async def note(name: str, session_id: str) -> Plan:
        plan = await request_plan(client, session_id)
        events.append(name)
        return plan

    async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.1, unknown_timeout_s=2.0) as (
        _,
        client,
    ):
        await request_plan(client, "other")  # now the stream is up
        assert (await request_plan(client, "known")).decision.origin is Origin.SIDECAR
        switch.is_on.clear()
        loop, limit = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(1.0, events.append, "between")
        loop.call_later(10.0, limit.set)
        unknown, known = await asyncio.gather(note("unknown", "never-seen"), note("known", "known"))
        assert not limit.is_set()
        stats = client.stats()
        switch.is_on.set()
    assert events == ["known", "between", "unknown"]
    assert (known.decision.origin, known.conversation_id) == (Origin.MEMORY, "sidecar:known")
    assert (unknown.decision.origin, unknown.conversation_id) == (Origin.LOCAL_RULE, "never-seen")
    assert (known.reason, unknown.reason) == ("sidecar-timed-out", "sidecar-timed-out")
    assert stats["fail_open"] == {"sidecar-timed-out": 2}


async def test_a_decision_that_came_too_late_is_remembered_for_the_next_turn(tmp_path: Path) -> None:
    switch = SwitchedSidecar()
    async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.02, unknown_timeout_s=0.02) as (
        sidecar,
        client,
    ):
        switch.is_on.clear()
        first = await poll(
            "a request that was sent and timed out",
            lambda: request_plan(client, "known"),
            lambda plan: plan.reason == "sidecar-timed-out" and bool(sidecar.items),
            lambda plan: plan.reason,
        )
        switch.is_on.set()
        await poll(
            "a late decision",
            lambda: request_plan(client, "other"),
            lambda _: "late_decisions" in client.stats(),
            lambda _: client.stats(),
        )
        switch.is_on.clear()
        second = await request_plan(client, "known")
        switch.is_on.set()
    assert first.conversation_id == "known"
    assert (second.decision.origin, second.conversation_id) == (Origin.MEMORY, "sidecar:known")


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        (service_pb2.ERROR_CODE_INVALID_ARGUMENT, "invalid_argument"),
        (service_pb2.ERROR_CODE_INTERNAL, "internal"),
        (service_pb2.ERROR_CODE_UNSPECIFIED, "other"),
        (99, "other"),
    ],
)
async def test_a_refused_item_falls_to_the_local_rule_and_affects_no_other_item(
    tmp_path: Path, code: service_pb2.ErrorCode, counted: str
) -> None:
    async def refuse_bad(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            for item in items:
                is_bad = item.request.identity.agent_context.session_id == "bad"
                await stream.write(
                    build_refusal(item, "hints.dp_rank", code) if is_bad else build_result(item)
                )

    async with connect(tmp_path / "s", refuse_bad) as (sidecar, client):
        bad, good = await asyncio.gather(request_plan(client, "bad"), request_plan(client, "good"))
        stats = client.stats()
    assert (bad.decision.origin, bad.conversation_id, bad.reason) == (
        Origin.LOCAL_RULE,
        "bad",
        "no-response",
    )
    assert (good.decision.origin, good.conversation_id) == (Origin.SIDECAR, "sidecar:good")
    assert stats["refused_items"] == {counted: 1}
    assert (len(sidecar.streams), len(sidecar.items), len(sidecar.finishes)) == (1, 2, 2)


async def test_a_hung_sidecar_does_not_make_each_request_wait_again(tmp_path: Path) -> None:
    """After one long wait requests are not sent, but for one a second, until the sidecar responds again."""
    switch = SwitchedSidecar()
    loop = asyncio.get_running_loop()
    with capture_logs() as lines:
        async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.1, unknown_timeout_s=0.1) as (
            sidecar,
            client,
        ):
            await request_plan(client)
            switch.is_on.clear()
            started_s = loop.time()
            plans = [await request_plan(client, f"new-{number}") for number in range(200)]
            took_s = loop.time() - started_s
            fail_open = client.stats()["fail_open"]
            switch.is_on.set()
            await plan_until(client, "")  # the next probe is due within a second
    assert {plan.conversation_id for plan in plans} == {f"new-{number}" for number in range(200)}
    assert sum(fail_open.values()) == 200
    # The first one, a probe as soon as the circuit is open, and one more for each second that was begun.
    assert fail_open["sidecar-timed-out"] <= 3 + took_s
    logged = [(line["log_level"], line["event"]) for line in lines if line["event"].startswith("sidecar")]
    assert logged == [("warning", "sidecar_unavailable"), ("info", "sidecar_recovered")]
    assert len(sidecar.streams) == 1


async def test_a_sidecar_that_stops_reading_holds_up_nobody(tmp_path: Path) -> None:
    """A full socket blocks the writer task only; what waits is bounded, and closing takes a second."""
    let_go = asyncio.Event()

    async def read_nothing(stream: Stream) -> None:
        await stream.greet()
        await let_go.wait()

    async with connect(tmp_path / "s", read_nothing, known_timeout_s=0.02, unknown_timeout_s=0.02) as (
        _,
        client,
    ):
        plans = await asyncio.gather(*(request_plan(client, f"{number:016000}") for number in range(500)))
        plans += [await request_plan(client, "small") for _ in range(50)]
        stats = client.stats()
        await client.close()
        let_go.set()
    assert {plan.decision.origin for plan in plans} <= {Origin.LOCAL_RULE, Origin.FORWARDED}
    assert plans[-1].conversation_id == "small"
    assert stats["fail_open"]["circuit-open"] >= 45
    assert "internal_errors" not in stats


async def test_a_caller_gone_before_its_request_was_sent_opens_no_circuit(tmp_path: Path) -> None:
    """Nobody owes a response to what was never sent."""

    async def give_up_at_once() -> None:
        task = asyncio.create_task(request_plan(client, "gone"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    with capture_logs() as lines:
        async with connect(tmp_path / "s", unknown_timeout_s=0.4) as (sidecar, client):
            await plan_until(client, "")
            for _ in range(3):
                await give_up_at_once()
                await asyncio.sleep(0.5)  # longer than anybody would wait for a response
                assert (await request_plan(client)).reason == ""
    assert "gone" not in sidecar.session_ids
    assert [message for message in sidecar.messages if not message.ByteSize()] == []
    assert [line for line in lines if line["event"].startswith("sidecar")] == []
