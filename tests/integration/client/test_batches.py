"""What goes over the socket, in how many messages, and that nothing does with the gate off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.fake_engine import CONVERSATION_PARAMS, StandInLLM
from routing_hints.v1 import service_pb2
from tests.support.builders import build_profile, build_request
from tests.support.scripted_sidecar import Stream, ask, build_answer, build_policy, connect
from worker_client import Affinity, ClientConfig, Origin, Phase, RoutingHintClient

ENGINE = build_profile()


async def test_gate_off_opens_no_connection_and_changes_no_engine_call() -> None:
    """The engine call equals the one that Dynamo's own worker makes."""
    connections = 0

    def count_connection(_reader: object, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    with_client = StandInLLM(CONVERSATION_PARAMS, 4)
    without_client = StandInLLM(CONVERSATION_PARAMS, 4)
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


async def test_items_that_arrive_together_travel_in_one_message(tmp_path: Path) -> None:
    """And a single one goes at once, waiting for no others."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await ask(client)
        plans = await asyncio.gather(*(ask(client, f"conversation-{n}") for n in range(20)))
        await ask(client)
    assert sidecar.batch_sizes == [1, 20, 1]
    assert [plan.conversation_id for plan in plans] == [f"sidecar:conversation-{n}" for n in range(20)]


async def test_answers_may_come_in_any_order(tmp_path: Path) -> None:
    """Each finds its own question by its number."""

    async def reverse(stream: Stream) -> None:
        await stream.greet()
        while message := await stream.read():
            await stream.write(*reversed([build_answer(item) for item in message.items]))

    async with connect(tmp_path / "s", reverse) as (_, client):
        plans = await asyncio.gather(*(ask(client, f"conversation-{n}") for n in range(20)))
    assert [plan.conversation_id for plan in plans] == [f"sidecar:conversation-{n}" for n in range(20)]


async def test_message_has_at_most_32_items(tmp_path: Path) -> None:
    """The sidecar decides about the first while the client writes the next."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await ask(client)
        plans = await asyncio.gather(*(ask(client, f"conversation-{n}") for n in range(600)))
    assert {plan.reason for plan in plans} == {""}
    assert max(sidecar.batch_sizes) == 32
    assert sum(sidecar.batch_sizes) == 601


async def test_message_has_at_most_one_mebibyte(tmp_path: Path) -> None:
    """An item that would pass the limit is the last of its message, so far under gRPC's own 4 MiB."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await ask(client)
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


async def test_only_carriers_that_the_policy_reads_are_sent(tmp_path: Path) -> None:
    """The rest of a request is nobody else's business."""

    async def converse(stream: Stream) -> None:
        await stream.read()
        await stream.write(
            policy=build_policy(
                identity_headers=["x-session-id"],
                identity_body=["metadata.user_id"],
                identity_annotations=["session:"],
            )
        )
        await stream.answer_all()

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        request = {**build_request(), "annotations": ["session:a", "query:b"]}
        headers = {"X-Session-Id": "h", "Authorization": "secret"}
        body = {"metadata": {"user_id": "u", "other": "o"}, "user": "x"}
        await client.plan(request, phase=Phase.PREFILL, engine=ENGINE, headers=headers, body=body)
    identity = sidecar.items[0].request.identity
    assert (dict(identity.headers), dict(identity.body)) == ({"x-session-id": "h"}, {"metadata.user_id": "u"})
    assert list(identity.annotations) == ["session:a"]


async def test_hello_names_the_worker_and_items_name_the_engine(tmp_path: Path) -> None:
    """The first message says who speaks, each item which engine it is for."""
    async with connect(tmp_path / "s", worker_id="worker-7") as (sidecar, client):
        await ask(client)
    assert sidecar.messages[0].hello.worker_id == "worker-7"
    assert sidecar.items[0].request.engine.instance_id == "engine-1"
    assert all(not message.HasField("hello") for message in sidecar.messages[1:])


async def test_end_of_a_request_travels_with_the_next_question(tmp_path: Path) -> None:
    """It costs no message of its own while requests come."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await ask(client)
        for _ in range(5):
            await asyncio.sleep(0)  # time enough for the writer, were it woken for the end alone
        await ask(client)
        second = next(message for message in sidecar.messages if message.items and message.items[0].seq == 2)
        assert [finish.seq for finish in second.finishes] == [1]


async def test_end_of_a_request_is_sent_when_no_question_follows(tmp_path: Path) -> None:
    """The last request's end does not wait for a next one."""
    async with connect(tmp_path / "s") as (sidecar, client):
        await ask(client)
        await sidecar.wait_for(lambda: len(sidecar.finishes) == 1)
        assert sidecar.batch_sizes == [1]


async def test_flood_of_ends_is_bounded_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    """While the sidecar is away the newest 65,536 ends are kept."""
    async with connect(tmp_path / "s") as (_, client):
        plan = await ask(client)
        assert plan.question is not None
        transport = client._transport
        for number in range(65_536 + 3):
            transport.finish(plan.question, service_pb2.Finish(request_id=str(number)))
        kept = transport._mailbox.finishes
        assert (len(kept), kept[-1].request_id) == (65_536, "65538")
        # The end of the request itself was the first of the queue, or has been sent already.
        assert client.stats()["finishes_lost"][""] in (3, 4)
        kept.clear()


async def test_answer_to_a_question_from_before_the_policy_is_remembered(tmp_path: Path) -> None:
    """Its conversation is known by the names of the policy that came in between, and by no other."""

    async def answer_late(stream: Stream) -> None:
        await stream.read()
        await asked.wait()
        await stream.write(policy=build_policy(identity_headers=["x-session-id"]))
        message = await stream.read()
        assert message is not None
        await stream.write(*map(build_answer, message.items))
        await stream.read()

    asked = asyncio.Event()
    header = {"headers": {"x-session-id": "named-by-a-header"}}
    async with connect(tmp_path / "s", answer_late, known_timeout_s=0.01, unknown_timeout_s=5.0) as (
        _,
        client,
    ):
        first = asyncio.create_task(ask(client, None, **header))
        await asyncio.sleep(0)
        asked.set()
        assert (await first).answer.origin is Origin.SIDECAR
        again = await ask(client, None, **header)
        other = await ask(client, None, headers={"x-session-id": "another-conversation"})
    assert (again.answer.origin, again.conversation_id) == (Origin.MEMORY, "sidecar:")
    assert other.answer.origin is Origin.FORWARDED
