"""A sidecar that speaks a newer or an older version of the contract than the client."""

from __future__ import annotations

from pathlib import Path

from routing_hints.v1 import service_pb2
from tests.support.scripted_sidecar import Stream, build_policy, build_result, connect, request_plan
from worker_client import Origin, RankDirective

UNKNOWN_FIELD = b"\xa2\x7d\x05later"
"""Field 2004, a string that this version does not have."""


async def respond_as_newer(stream: Stream) -> None:
    """Speaks the contract with unknown fields at every level, and enum values from the future."""
    await stream.read()
    policy = build_policy()
    policy.local_sources.append(77)  # type: ignore[arg-type]
    policy.MergeFromString(UNKNOWN_FIELD)
    await send(stream, service_pb2.EnrichStreamResponse(policy=policy))
    while items := await stream.read_items():
        results = []
        for item in items:
            result = build_result(item, notices=["of-a-later-version"])
            if item.request.identity.agent_context.session_id == "unknown-directive":
                result.response.rank_directive = 77  # type: ignore[assignment]
            result.response.source = 77  # type: ignore[assignment]
            result.response.placement = 77  # type: ignore[assignment]
            for part in (result, result.response, result.response.hints):
                part.MergeFromString(UNKNOWN_FIELD)
            results.append(result)
        await send(stream, service_pb2.EnrichStreamResponse(results=results))


async def send(stream: Stream, message: service_pb2.EnrichStreamResponse) -> None:
    message.MergeFromString(UNKNOWN_FIELD)
    await stream.context.write(message)


async def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", respond_as_newer) as (_, client):
        plan = await request_plan(client)
    assert (plan.decision.origin, plan.conversation_id) == (Origin.SIDECAR, "sidecar:conversation-0001")
    assert plan.decision.directive is RankDirective.WITHHOLD
    assert plan.notices == ("of-a-later-version",)
    assert "internal_errors" not in client.stats()


async def test_a_directive_of_a_later_version_forwards_the_rank(tmp_path: Path) -> None:
    async with connect(tmp_path / "s", respond_as_newer) as (_, client):
        plan = await request_plan(client, "unknown-directive")
    assert (plan.decision.origin, plan.decision.directive) == (Origin.SIDECAR, RankDirective.FORWARD)


async def test_an_outcome_of_a_later_version_falls_to_the_local_rule(tmp_path: Path) -> None:
    """A result that is neither response nor error releases its caller at once."""

    async def respond(stream: Stream) -> None:
        await stream.greet()
        while items := await stream.read_items():
            results = [service_pb2.EnrichResult(seq=item.seq) for item in items]
            for result in results:
                result.MergeFromString(UNKNOWN_FIELD)
            await stream.write(*results)

    async with connect(tmp_path / "s", respond) as (_, client):
        plan = await request_plan(client)
    assert (plan.decision.origin, plan.reason) == (Origin.LOCAL_RULE, "no-response")


async def test_a_decision_of_an_earlier_version_is_applied(tmp_path: Path) -> None:
    """A policy and a response with the oldest fields alone are enough."""

    async def respond(stream: Stream) -> None:
        await stream.read()
        await stream.context.write(service_pb2.EnrichStreamResponse(policy=service_pb2.ClientPolicy()))
        while items := await stream.read_items():
            oldest = service_pb2.EnrichResponse()
            await stream.write(*(service_pb2.EnrichResult(seq=item.seq, response=oldest) for item in items))

    async with connect(tmp_path / "s", respond) as (_, client):
        plan = await request_plan(client)
    assert (plan.decision.origin, plan.decision.directive) == (Origin.SIDECAR, RankDirective.FORWARD)
    assert plan.conversation_id is None
