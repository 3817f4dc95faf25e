"""What is sent over the socket, in how many messages, and that nothing is with the gate off."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM
from tests.support.builders import ENGINE, build_request
from tests.support.scripted_sidecar import Stream, build_policy, build_result, connect, request_plan
from worker_client import Affinity, ClientConfig, Phase, RoutingHintClient


async def test_with_the_gate_off_no_connection_is_opened_and_no_engine_call_changed() -> None:
    """The engine call equals the one that Dynamo's own worker makes."""
    connections = 0

    def count_connection(_reader: object, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    with_client = FakeLLM(CONVERSATION_PARAMS, 4)
    without_client = FakeLLM(CONVERSATION_PARAMS, 4)
    params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only")
    with TemporaryDirectory(prefix="rh") as folder:
        path = Path(folder) / "s.sock"
        async with await asyncio.start_unix_server(count_connection, path):
            config = ClientConfig(target=f"unix://{path}", affinity=Affinity.OFF)
            request = build_request(rank=2)
            async with (
                RoutingHintClient(config) as client,
                client.plan(request, phase=Phase.PREFILL, engine=ENGINE) as plan,
            ):
                kwargs = plan.engine_kwargs(disaggregated_params=params)
                with_client.generate_async([1, 2], streaming=True, **kwargs)
    own = CONVERSATION_PARAMS.scheduling_params(attention_dp_rank=2, attention_dp_relax=False)
    without_client.generate_async([1, 2], streaming=True, disaggregated_params=params, scheduling_params=own)
    assert with_client.calls[0].kwargs == without_client.calls[0].kwargs
    assert with_client.calls[0].kwargs["disaggregated_params"] is params
    assert (connections, plan.reason) == (0, "gate-off")


async def test_requests_that_arrive_together_travel_in_one_message_and_a_single_one_at_once(
    tmp_path: Path,
) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        plans = await asyncio.gather(*(request_plan(client, f"conversation-{n}") for n in range(20)))
        await request_plan(client)
    assert sidecar.batch_sizes == [1, 20, 1]
    assert [plan.conversation_id for plan in plans] == [f"sidecar:conversation-{n}" for n in range(20)]


async def test_results_may_come_in_any_order(tmp_path: Path) -> None:
    async def reverse(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            await stream.write(*reversed([build_result(item) for item in items]))

    async with connect(tmp_path / "s", reverse) as (_, client):
        plans = await asyncio.gather(*(request_plan(client, f"conversation-{n}") for n in range(20)))
    assert [plan.conversation_id for plan in plans] == [f"sidecar:conversation-{n}" for n in range(20)]


async def test_a_message_has_at_most_32_items(tmp_path: Path) -> None:
    """The sidecar decides about the first message while the client writes the next."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        plans = await asyncio.gather(*(request_plan(client, f"conversation-{n}") for n in range(600)))
    assert {plan.reason for plan in plans} == {""}
    assert max(sidecar.batch_sizes) == 32
    assert sum(sidecar.batch_sizes) == 601


async def test_a_message_ends_with_the_item_that_takes_it_over_one_mebibyte(tmp_path: Path) -> None:
    """So it stays far under gRPC's own 4 MiB."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        names = ("session_id", "parent_session_id", "trajectory_id", "parent_trajectory_id")
        requests = [
            build_request() | {"agent_context": {name: f"{name}-{n:016000}" for name in names}}
            for n in range(100)
        ]
        await asyncio.gather(*(_plan(client, request) for request in requests))
    assert 1024 * 1024 < max(message.ByteSize() for message in sidecar.messages) < 1024 * 1024 + 65_000
    assert max(sidecar.batch_sizes) < 32
    assert len(sidecar.items) == 101


async def _plan(client: RoutingHintClient, request: dict[str, object]) -> None:
    async with client.plan(request, phase=Phase.PREFILL, engine=ENGINE):
        pass


async def test_the_first_message_names_the_worker_and_its_client(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", worker_id="worker-7") as (sidecar, client):
        await request_plan(client)
    hello = sidecar.messages[0].hello
    assert (hello.worker_id, hello.client_version) == ("worker-7", version("routing-hint-sidecar"))
    assert all(not message.HasField("hello") for message in sidecar.messages[1:])


async def test_carriers_over_64_kib_are_dropped_with_a_notice_and_the_request_is_sent(tmp_path: Path) -> None:
    """The sidecar would refuse the whole request."""
    names = [f"x-{number}" for number in range(8)]

    async def converse(stream: Stream) -> None:
        await stream.greet(build_policy(identity_headers=[*names, "x-session-id"]))
        await stream.respond_to_all()

    headers = {name: f"{name}-{'v' * (16_000 - number)}" for number, name in enumerate(names)}
    async with connect(tmp_path / "s", converse) as (sidecar, client):
        await request_plan(client)
        plan = await request_plan(client, headers={**headers, "x-session-id": "short"})
        fits = await request_plan(client, headers={"x-session-id": "short"})
    identity = sidecar.items[1].request.identity
    assert identity.ByteSize() <= 65_536
    assert identity.headers["x-session-id"] == "short"
    assert set(identity.headers) < {*names, "x-session-id"}
    assert identity.agent_context.session_id == "conversation-0001"
    assert (plan.reason, plan.notices) == ("", ("carriers-over-limit-dropped",))
    assert fits.notices == ()


async def test_a_finish_report_travels_with_the_next_request(tmp_path: Path) -> None:
    """It costs no message of its own while requests come."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        for _ in range(5):
            await asyncio.sleep(0)  # time enough for the writer, were it woken for the report alone
        await request_plan(client)
        second = next(message for message in sidecar.messages if message.items and message.items[0].seq == 2)
        assert [finish.seq for finish in second.finishes] == [1]


async def test_a_finish_report_is_sent_also_when_no_request_follows(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as (sidecar, client):
        await request_plan(client)
        await sidecar.wait_until("the finish report", lambda: len(sidecar.finishes) == 1)
        assert sidecar.batch_sizes == [1]
