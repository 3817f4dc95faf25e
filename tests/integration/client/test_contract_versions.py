"""A sidecar that speaks a newer or an older version of the contract than the client."""

from __future__ import annotations

from pathlib import Path

from routing_hints.v1 import service_pb2
from tests.support.scripted_sidecar import Stream, ask, build_answer, build_policy, connect
from worker_client import Origin, RankDirective

UNKNOWN_FIELD = b"\xa2\x7d\x05later"
"""Field 2004, a string that this version does not know."""


async def answer_as_newer(stream: Stream) -> None:
    """Speaks the contract with unknown fields at every level, and enum values from the future."""
    await stream.read()
    policy = build_policy()
    policy.local_sources.append(77)  # type: ignore[arg-type]
    policy.MergeFromString(UNKNOWN_FIELD)
    await send(stream, service_pb2.EnrichStreamResponse(policy=policy))
    while message := await stream.read():
        results = []
        for item in message.items:
            result = build_answer(item, notices=["said-by-a-later-version"])
            if item.request.identity.agent_context.session_id == "to-be-split":
                result.response.rank_directive = 77  # type: ignore[assignment]
            result.response.source = 77  # type: ignore[assignment]
            result.response.decision = 77  # type: ignore[assignment]
            for part in (result, result.response, result.response.hints):
                part.MergeFromString(UNKNOWN_FIELD)
            results.append(result)
        await send(stream, service_pb2.EnrichStreamResponse(results=results))


async def send(stream: Stream, message: service_pb2.EnrichStreamResponse) -> None:
    """Sends a message with a field of a later version."""
    message.MergeFromString(UNKNOWN_FIELD)
    await stream.context.write(message)


async def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    """What the client knows of the answer counts, and what it does not know hurts nothing."""
    async with connect(tmp_path / "s", answer_as_newer) as (_, client):
        plan = await ask(client)
    assert (plan.answer.origin, plan.conversation_id) == (Origin.SIDECAR, "sidecar:conversation-0001")
    assert plan.answer.directive is RankDirective.WITHHOLD
    assert plan.notices == ("said-by-a-later-version",)
    assert "defects" not in client.stats()


async def test_directive_of_a_later_version_forwards_the_rank(tmp_path: Path) -> None:
    """A directive that the client can't act on leaves the request as the router sent it."""
    async with connect(tmp_path / "s", answer_as_newer) as (_, client):
        plan = await ask(client, "to-be-split")
    assert (plan.answer.origin, plan.answer.directive) == (Origin.SIDECAR, RankDirective.FORWARD)


async def test_outcome_of_a_later_version_falls_to_the_local_rule(tmp_path: Path) -> None:
    """A result that is neither response nor error releases its caller at once."""

    async def answer(stream: Stream) -> None:
        await stream.greet()
        while message := await stream.read():
            results = [service_pb2.EnrichResult(seq=item.seq) for item in message.items]
            for result in results:
                result.MergeFromString(UNKNOWN_FIELD)
            await stream.write(*results)

    async with connect(tmp_path / "s", answer) as (_, client):
        plan = await ask(client)
    assert (plan.answer.origin, plan.reason) == (Origin.LOCAL_RULE, "sidecar-gave-no-answer")


async def test_answer_of_an_earlier_version_is_taken(tmp_path: Path) -> None:
    """A policy and an answer with the oldest fields alone are enough."""

    async def answer(stream: Stream) -> None:
        await stream.read()
        await stream.context.write(service_pb2.EnrichStreamResponse(policy=service_pb2.ClientPolicy()))
        while message := await stream.read():
            oldest = [
                service_pb2.EnrichResult(seq=item.seq, response=service_pb2.EnrichResponse())
                for item in message.items
            ]
            if oldest:
                await stream.write(*oldest)

    async with connect(tmp_path / "s", answer) as (_, client):
        plan = await ask(client)
    assert (plan.answer.origin, plan.answer.directive) == (Origin.SIDECAR, RankDirective.FORWARD)
    assert plan.conversation_id is None
