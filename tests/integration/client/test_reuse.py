"""A remembered decision is applied at once, and the request is sent all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from examples.fake_engine import RANK_ONLY
from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import ENGINE, build_profile, build_request
from tests.support.scripted_sidecar import (
    Stream,
    build_policy,
    build_result,
    connect,
    poll,
    request_plan,
)
from worker_client import (
    AdpRouter,
    FinishOutcome,
    Origin,
    Phase,
    RankDirective,
    RankSource,
    RoutingHintClient,
)

MAX_AGE = Duration(seconds=1_800)
PLACING = build_profile(
    RANK_ONLY, instance_id="placing", adp_router=AdpRouter.DEFAULT, rank_source=RankSource.SIDECAR
)
UNCHANGED = service_pb2.Unchanged()


def build_reusing_policy(
    revision: str = "r1", generation: int = 1, **fields: Any
) -> service_pb2.ClientPolicy:
    return build_policy(revision, reuse_max_age=MAX_AGE, reuse_generation=generation, **fields)


def build_reusable(
    item: service_pb2.EnrichItem, generation: int = 1, **fields: Any
) -> service_pb2.EnrichResult:
    result = build_result(item, **{"reusable": True, **fields})
    result.generation = generation
    return result


def build_placed(item: service_pb2.EnrichItem, rank: int) -> service_pb2.EnrichResult:
    response = service_pb2.EnrichResponse(
        hints=types_pb2.RoutingHints(dp_rank=rank),
        rank_directive=types_pb2.RANK_DIRECTIVE_PLACE,
        decision_id=f"d-{item.seq}",
        conversation_hash="0123456789abcdef",
        policy_revision="r1",
        reusable=True,
    )
    return service_pb2.EnrichResult(seq=item.seq, response=response, generation=1)


Respond = Callable[[service_pb2.EnrichItem], service_pb2.EnrichResult]


def converse_with(
    respond: Respond = build_reusable, policy: service_pb2.ClientPolicy | None = None
) -> Callable[[Stream], Awaitable[None]]:
    async def converse(stream: Stream) -> None:
        await stream.greet(policy or build_reusing_policy())
        while items := await stream.read_items():
            await stream.write(*map(respond, items))

    return converse


async def plan_until_reused(client: RoutingHintClient, **options: Any) -> None:
    await poll(
        "a reused plan",
        lambda: request_plan(client, **options),
        lambda plan: plan.decision.origin is Origin.REUSED,
        lambda plan: plan.decision.origin,
    )


async def test_known_conversation_does_not_wait_and_its_request_is_sent_all_the_same(tmp_path: Path) -> None:
    silent = asyncio.Event()

    async def converse(stream: Stream) -> None:
        await stream.greet(build_reusing_policy())
        await stream.write(*map(build_reusable, await stream.read_items()))
        while await stream.read_items():
            silent.set()

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        first = await request_plan(client)
        second = await request_plan(client)
        assert [plan.decision.origin for plan in (first, second)] == [Origin.SIDECAR, Origin.REUSED]
        assert (second.conversation_id, second.reason) == ("sidecar:conversation-0001", "")
        await asyncio.wait_for(silent.wait(), 20)
        applied = sidecar.items[1].applied
        assert (applied.directive, applied.decision_id) == (types_pb2.RANK_DIRECTIVE_WITHHOLD, "d-1")
        assert client.stats()["plans"] == {"reused": 1, "sidecar": 1}


async def test_finish_report_of_a_reused_request_never_travels_with_its_item(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", converse_with()) as (sidecar, client):
        await request_plan(client)
        await request_plan(client)
        await sidecar.wait_until("both finish reports", lambda: len(sidecar.finishes) == 2)
    position = {
        ("item", item.seq): number
        for number, message in enumerate(sidecar.messages)
        for item in message.items
    }
    for number, message in enumerate(sidecar.messages):
        for finish in message.finishes:
            assert number > position["item", finish.seq]
    reused = sidecar.finishes[1]
    assert (reused.reused, reused.decision_id, reused.seq) == (True, "", 2)


async def test_request_that_ended_at_once_by_its_callers_cancellation_is_sent(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", converse_with()) as (sidecar, client):
        await request_plan(client)

        async def be_cancelled() -> None:
            async with client.plan(build_request(), phase=Phase.PREFILL, engine=ENGINE):
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await be_cancelled()
        await sidecar.wait_until("the second finish report", lambda: len(sidecar.finishes) == 2)
    assert len(sidecar.items) == 2
    assert sidecar.finishes[1].outcome == service_pb2.FINISH_OUTCOME_CANCELLED


async def test_many_reused_requests_share_their_messages(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", converse_with()) as (sidecar, client):
        await request_plan(client)
        for _ in range(64):
            await request_plan(client)
        await sidecar.wait_until("all items", lambda: len(sidecar.items) == 65)
    assert sidecar.batch_sizes[0] == 1
    assert max(sidecar.batch_sizes) == 32


NOT_REUSED: dict[str, dict[str, Any]] = {
    "not-reusable": {"respond": lambda item: build_reusable(item, reusable=False)},
    "other-generation": {"respond": lambda item: build_reusable(item, generation=2)},
    "other-policy": {"respond": lambda item: build_reusable(item, revision="r0")},
    "reuse-off": {"policy": build_policy("r1", reuse_generation=1)},
    "too-old": {"policy": build_policy("r1", reuse_generation=1, reuse_max_age=Duration(nanos=1))},
    "identity-changes-now": {"policy": build_reusing_policy(valid_until=Timestamp(seconds=1))},
}


@pytest.mark.parametrize("name", NOT_REUSED)
async def test_decision_that_does_not_hold_any_more_waits_for_the_sidecar(tmp_path: Path, name: str) -> None:
    async with connect(tmp_path / "s", converse_with(**NOT_REUSED[name])) as (_, client):
        plans = [await request_plan(client) for _ in range(3)]
    assert {plan.decision.origin for plan in plans} == {Origin.SIDECAR}


async def test_request_of_another_key_waits_for_the_sidecar(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", converse_with()) as (_, client):
        await request_plan(client)
        others = [
            await request_plan(client, session_id="conversation-0002"),
            await request_plan(client, engine=build_profile(instance_id="engine-2")),
            await request_plan(client, tenant="t"),
        ]
        request = build_request()  # the router sends no rank
        async with client.plan(request, phase=Phase.PREFILL, engine=ENGINE) as plan:
            others.append(plan)
    assert {plan.decision.origin for plan in others} == {Origin.SIDECAR}


async def test_members_of_baggage_that_the_policy_does_not_read_change_nothing(tmp_path: Path) -> None:
    policy = build_reusing_policy(identity_baggage=["gen_ai.conversation.id"])
    async with connect(tmp_path / "s", converse_with(policy=policy)) as (sidecar, client):
        for user in ("a", "b"):
            headers = {"baggage": f"user={user}, gen_ai.conversation.id=c-1;p=1"}
            plan = await request_plan(client, headers=headers)
        assert plan.decision.origin is Origin.REUSED
        other = await request_plan(client, headers={"baggage": "gen_ai.conversation.id=c-2"})
        assert other.decision.origin is Origin.SIDECAR
    assert sidecar.items[0].request.identity.headers["baggage"] == "gen_ai.conversation.id=c-1;p=1"


async def push(tmp_path: Path, change: service_pb2.EnrichStreamResponse) -> list[Origin]:
    """Returns who decides before and after a message of the sidecar that nobody requested."""
    streams: list[Stream] = []

    async def converse(stream: Stream) -> None:
        streams.append(stream)
        await converse_with()(stream)

    async with connect(tmp_path / "s", converse) as (_, client):
        await request_plan(client)
        before = await request_plan(client)
        received = client.stats()["policies_received"][""]
        await streams[0].context.write(change)
        if change.HasField("policy"):
            await poll(
                "the policy",
                lambda: asyncio.sleep(0, client.stats()["policies_received"][""]),
                lambda count: count > received,
            )
        else:
            await poll(
                "a plan that waits",
                lambda: request_plan(client),
                lambda plan: plan.decision.origin is Origin.SIDECAR,
            )
            return [before.decision.origin, Origin.SIDECAR]
        after = await request_plan(client)
    return [before.decision.origin, after.decision.origin]


async def test_raised_generation_ends_reuse(tmp_path: Path) -> None:
    change = service_pb2.EnrichStreamResponse(policy=build_reusing_policy(generation=2))
    assert await push(tmp_path, change) == [Origin.REUSED, Origin.SIDECAR]


async def test_another_policy_ends_reuse(tmp_path: Path) -> None:
    change = service_pb2.EnrichStreamResponse(policy=build_reusing_policy("r2"))
    assert await push(tmp_path, change) == [Origin.REUSED, Origin.SIDECAR]


async def test_ended_conversation_is_forgotten(tmp_path: Path) -> None:
    change = service_pb2.EnrichStreamResponse(ended=["0123456789abcdef"])
    assert await push(tmp_path, change) == [Origin.REUSED, Origin.SIDECAR]


async def test_decision_of_a_lost_stream_waits_for_the_sidecar(tmp_path: Path) -> None:
    async def converse(stream: Stream) -> None:
        await stream.greet(build_reusing_policy())
        items = await stream.read_items()
        await stream.write(*map(build_reusable, items))
        if len(stream.sidecar.streams) == 1:
            await stream.read_items()
            return
        await converse_rest(stream)

    async def converse_rest(stream: Stream) -> None:
        while items := await stream.read_items():
            await stream.write(*map(build_reusable, items))

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        await request_plan(client)
        assert (await request_plan(client)).decision.origin is Origin.REUSED
        await sidecar.wait_until("the item that ends the stream", lambda: len(sidecar.items) == 2)
        await poll(
            "another stream", lambda: asyncio.sleep(0.01, len(sidecar.streams)), lambda count: count == 2
        )
        plan = await poll(
            "a decision",
            lambda: request_plan(client),
            lambda plan: not plan.reason,
            lambda plan: plan.reason,
        )
        assert plan.decision.origin is Origin.SIDECAR


async def test_response_that_differs_is_counted_and_remembered(tmp_path: Path) -> None:
    ranks = iter([1, 2, 2])

    def respond(item: service_pb2.EnrichItem) -> service_pb2.EnrichResult:
        return build_placed(item, next(ranks))

    async with connect(tmp_path / "s", converse_with(respond)) as (sidecar, client):
        await request_plan(client, engine=PLACING)
        assert (await request_plan(client, engine=PLACING)).decision.dp_rank == 1
        plan = await poll(
            "the corrected rank",
            lambda: asyncio.sleep(0.01, client.stats().get("reuse_corrected")),
            lambda corrected: corrected == {"rank": 1},
        )
        assert plan == {"rank": 1}
        assert (await request_plan(client, engine=PLACING)).decision.dp_rank == 2
    assert sidecar.items[1].applied.dp_rank == 1


async def test_unchanged_keeps_the_decision(tmp_path: Path) -> None:
    def respond(item: service_pb2.EnrichItem) -> service_pb2.EnrichResult:
        if item.HasField("applied"):
            return service_pb2.EnrichResult(seq=item.seq, unchanged=UNCHANGED, generation=1)
        return build_reusable(item)

    async with connect(tmp_path / "s", converse_with(respond)) as (sidecar, client):
        plans = []
        for number in range(3):
            plans.append(await request_plan(client))
            await sidecar.wait_until("its item", lambda number=number: len(sidecar.items) == number + 1)
        assert [plan.decision.origin for plan in plans[1:]] == [Origin.REUSED] * 2
        assert "reuse_corrected" not in client.stats()


def observe_rank(rank: int) -> dict[str, Any]:
    return {"disaggregated_params": {"ctx_dp_rank": rank}}


@pytest.mark.parametrize(
    ("observed", "outcome", "origin"),
    [
        (1, FinishOutcome.COMPLETED, Origin.REUSED),
        (2, FinishOutcome.COMPLETED, Origin.SIDECAR),
        (None, FinishOutcome.COMPLETED, Origin.REUSED),
        (None, FinishOutcome.FAILED, Origin.SIDECAR),
    ],
    ids=["as-placed", "elsewhere", "unobserved", "failed"],
)
async def test_request_that_ran_elsewhere_or_failed_lets_the_next_one_wait(
    tmp_path: Path, observed: int | None, outcome: FinishOutcome, origin: Origin
) -> None:
    async with connect(tmp_path / "s", converse_with(lambda item: build_placed(item, 1))) as (_, client):
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=PLACING)
        plan.engine_kwargs()
        if observed is not None:
            plan.observe(observe_rank(observed))
        assert plan.decision.directive is RankDirective.PLACE
        plan.finish(outcome)
        after = await client.plan(build_request(), phase=Phase.PREFILL, engine=PLACING)
        assert after.decision.origin is origin
        after.finish()


async def test_rank_that_was_observed_in_an_outage_is_sent_as_known(tmp_path: Path) -> None:
    """A conversation that began while the sidecar was unavailable has its cache where the engine put it."""
    refuses = True

    async def converse(stream: Stream) -> None:
        if refuses:
            return
        await converse_with(lambda item: build_placed(item, 3))(stream)

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=PLACING)
        assert plan.reason
        plan.engine_kwargs()
        plan.observe(observe_rank(3))
        plan.finish()
        refuses = False
        await poll(
            "a decision",
            lambda: client.plan(build_request(), phase=Phase.PREFILL, engine=PLACING).__aenter__(),
            lambda plan: not plan.reason,
        )
    assert sidecar.items[0].request.known_rank == 3


async def test_sidecar_that_hangs_makes_no_known_conversation_wait_and_grows_nothing(tmp_path: Path) -> None:
    hung = asyncio.Event()

    async def converse(stream: Stream) -> None:
        await stream.greet(build_reusing_policy())
        await stream.write(*map(build_reusable, await stream.read_items()))
        await hung.wait()

    async with connect(tmp_path / "s", converse) as (_, client):
        await request_plan(client)
        plans = [await request_plan(client) for _ in range(9_000)]
        assert {plan.decision.origin for plan in plans} == {Origin.REUSED}
        dropped = client.stats()["reuse_dropped"]
        assert sum(dropped.values()) > 0
        assert set(dropped) == {"agent_context"}
        hung.set()


async def test_dropped_requests_are_reported_by_carrier(tmp_path: Path) -> None:
    resumed = asyncio.Event()

    async def converse(stream: Stream) -> None:
        await stream.greet(build_reusing_policy())
        await stream.write(*map(build_reusable, await stream.read_items()))
        await resumed.wait()
        while items := await stream.read_items():
            await stream.write(*map(build_reusable, items))

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        await request_plan(client)
        for _ in range(9_000):
            await request_plan(client)
        lost = sum(client.stats()["reuse_dropped"].values())
        resumed.set()

        def count_reported() -> int:
            return sum(one.count for message in sidecar.messages for one in message.dropped)

        await sidecar.wait_until("the report", lambda: count_reported() == lost)
