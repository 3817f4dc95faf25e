"""How long a request waits for a sidecar that is late, hung or wrong, and what it goes on with."""

from __future__ import annotations

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from routing_hints.v1 import service_pb2
from tests.support.builders import build_profile
from tests.support.scripted_sidecar import Stream, ask, ask_until, build_answer, connect
from worker_client import Origin, Plan

ENGINE = build_profile()


class Switch:
    """A sidecar that answers while `is_on` is set; what came meanwhile it answers when switched on again."""

    def __init__(self) -> None:
        self.is_on = asyncio.Event()
        self.is_on.set()

    async def converse(self, stream: Stream) -> None:
        """Serves one stream."""
        await stream.greet()
        while message := await stream.read():
            await self.is_on.wait()
            if message.items:
                await stream.write(*map(build_answer, message.items))


async def test_each_deadline_holds_against_a_sidecar_that_never_answers(tmp_path: Path) -> None:
    """Known conversations go on after the short one, others after the long one: by the loop's own clock."""
    switch, events = Switch(), []

    async def note(name: str, session_id: str) -> Plan:
        plan = await ask(client, session_id)
        events.append(name)
        return plan

    async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.1, unknown_timeout_s=2.0) as (
        _,
        client,
    ):
        await ask(client, "other")  # now the stream is up
        assert (await ask(client, "known")).answer.origin is Origin.SIDECAR
        switch.is_on.clear()
        loop, limit = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(1.0, events.append, "between")
        loop.call_later(10.0, limit.set)
        unknown, known = await asyncio.gather(note("unknown", "never-seen"), note("known", "known"))
        assert not limit.is_set()
        stats = client.stats()
        switch.is_on.set()
    assert events == ["known", "between", "unknown"]
    assert (known.answer.origin, known.conversation_id) == (Origin.MEMORY, "sidecar:known")
    assert (unknown.answer.origin, unknown.conversation_id) == (Origin.LOCAL_RULE, "never-seen")
    assert (known.reason, unknown.reason) == ("sidecar-late", "sidecar-late")
    assert stats["fail_open"] == {"sidecar-late": 2}


async def test_late_answer_is_remembered(tmp_path: Path) -> None:
    """The conversation's next turn has it, though its first one did not."""
    switch = Switch()
    async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.02, unknown_timeout_s=0.02) as (
        sidecar,
        client,
    ):
        switch.is_on.clear()
        while (first := await ask(client, "known")).reason != "sidecar-late" or not sidecar.items:
            pass
        switch.is_on.set()
        while not client.stats().get("late_answers"):
            await ask(client, "other")
        switch.is_on.clear()
        second = await ask(client, "known")
        switch.is_on.set()
    assert first.conversation_id == "known"
    assert (second.answer.origin, second.conversation_id) == (Origin.MEMORY, "sidecar:known")


async def test_refused_item_falls_to_the_local_rule_and_no_other_item_notices(tmp_path: Path) -> None:
    """A bad item has its own error, and the stream goes on."""

    async def refuse_bad(stream: Stream) -> None:
        await stream.greet()
        while message := await stream.read():
            for item in message.items:
                result = build_answer(item)
                if item.request.identity.agent_context.session_id == "bad":
                    error = service_pb2.EnrichError(
                        code=service_pb2.ERROR_CODE_INVALID_ARGUMENT, field="hints.dp_rank"
                    )
                    result = service_pb2.EnrichResult(seq=item.seq, error=error)
                await stream.write(result)

    async with connect(tmp_path / "s", refuse_bad) as (sidecar, client):
        bad, good = await asyncio.gather(ask(client, "bad"), ask(client, "good"))
        stats = client.stats()
    assert (bad.answer.origin, bad.conversation_id, bad.reason) == (
        Origin.LOCAL_RULE,
        "bad",
        "sidecar-gave-no-answer",
    )
    assert (good.answer.origin, good.conversation_id) == (Origin.SIDECAR, "sidecar:good")
    assert stats["item_refused"] == {"hints.dp_rank": 1}
    assert (sidecar.n_streams, len(sidecar.finishes)) == (1, 2)


async def test_hung_sidecar_does_not_make_each_request_wait_again(tmp_path: Path) -> None:
    """After one long wait requests go unasked, but for one a second, until the sidecar is heard again."""
    switch = Switch()
    with capture_logs() as lines:
        async with connect(tmp_path / "s", switch.converse, known_timeout_s=0.1, unknown_timeout_s=0.1) as (
            sidecar,
            client,
        ):
            await ask(client)
            switch.is_on.clear()
            plans = [await ask(client, f"new-{number}") for number in range(200)]
            fail_open = client.stats()["fail_open"]
            switch.is_on.set()
            await ask_until(client, "")  # the next probe is due within a second
    assert {plan.conversation_id for plan in plans} == {f"new-{number}" for number in range(200)}
    assert sum(fail_open.values()) == 200
    assert fail_open["sidecar-late"] <= 5
    said = [(line["log_level"], line["event"]) for line in lines if line["event"].startswith("sidecar")]
    assert said == [("warning", "sidecar_silent"), ("info", "sidecar_recovered")]
    assert sidecar.n_streams == 1


async def test_sidecar_that_stops_reading_holds_up_nobody(tmp_path: Path) -> None:
    """A full socket blocks the writer task only; what waits is bounded, and closing takes a second."""
    let_go = asyncio.Event()

    async def read_nothing(stream: Stream) -> None:
        await stream.greet()
        await let_go.wait()

    async with connect(tmp_path / "s", read_nothing, known_timeout_s=0.02, unknown_timeout_s=0.02) as (
        _,
        client,
    ):
        plans = await asyncio.gather(*(ask(client, f"{number:016000}") for number in range(500)))
        plans += [await ask(client, "small") for _ in range(50)]
        stats = client.stats()
        await client.close()
        let_go.set()
    assert {plan.answer.origin for plan in plans} <= {Origin.LOCAL_RULE, Origin.FORWARDED}
    assert plans[-1].conversation_id == "small"
    assert stats["fail_open"]["unresponsive"] >= 45
    assert "defects" not in stats


async def test_caller_gone_before_its_question_left_is_no_silence(tmp_path: Path) -> None:
    """Nobody owes an answer to what was never sent."""

    async def give_up_at_once() -> None:
        task = asyncio.create_task(ask(client, "gone"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    with capture_logs() as lines:
        async with connect(tmp_path / "s", unknown_timeout_s=0.4) as (sidecar, client):
            await ask_until(client, "")
            for _ in range(3):
                await give_up_at_once()
                await asyncio.sleep(0.5)  # longer than anybody would wait for an answer
                assert (await ask(client)).reason == ""
    asked = [item.request.identity.agent_context.session_id for item in sidecar.items]
    assert "gone" not in asked
    assert [message for message in sidecar.messages if not message.ByteSize()] == []
    assert [line for line in lines if line["event"].startswith("sidecar")] == []
