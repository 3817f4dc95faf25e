"""The sidecar's policy at the client: what it makes the client send, remember and log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.builders import ENGINE, build_request
from tests.support.scripted_sidecar import Stream, build_policy, build_result, connect, request_plan
from worker_client import Origin, Phase, Plan


async def test_only_carriers_that_the_policy_reads_are_sent(tmp_path: Path) -> None:
    policy = build_policy(
        identity_headers=["x-session-id"],
        identity_body=["metadata.user_id"],
        identity_annotations=["session:"],
    )

    async def converse(stream: Stream) -> None:
        await stream.greet(policy)
        await stream.respond_to_all()

    async with connect(tmp_path / "s", converse) as (sidecar, client):
        request = {**build_request(), "annotations": ["session:a", "query:b"]}
        headers = {"X-Session-Id": "h", "Authorization": "secret"}
        body = {"metadata": {"user_id": "u", "other": "o"}, "user": "x"}
        await client.plan(request, phase=Phase.PREFILL, engine=ENGINE, headers=headers, body=body)
    identity = sidecar.items[0].request.identity
    assert (dict(identity.headers), dict(identity.body)) == ({"x-session-id": "h"}, {"metadata.user_id": "u"})
    assert list(identity.annotations) == ["session:a"]


async def test_the_policy_may_change_in_mid_stream(tmp_path: Path) -> None:
    """From then on other carriers are sent, and decisions by the old one are not recalled."""
    is_responding = True

    async def change_policy(stream: Stream) -> None:
        await stream.greet()
        (first,) = await stream.read_items()
        second = build_policy("r2", identity_headers=["x-session-id"])
        await stream.write(build_result(first, "r1"), policy=second)
        while items := await stream.read_items():
            if is_responding:
                await stream.write(*(build_result(item, "r2") for item in items))

    async with connect(tmp_path / "s", change_policy, unknown_timeout_s=0.5) as (sidecar, client):
        headers = {"x-session-id": "h"}
        await request_plan(client, headers=headers)
        await request_plan(client, "other", headers=headers)
        is_responding = False
        known = await request_plan(client, headers=headers)
        stats = client.stats()
    assert [dict(item.request.identity.headers) for item in sidecar.items[:2]] == [{}, headers]
    assert (known.decision.origin, known.decision.policy_revision) == (Origin.LOCAL_RULE, "r2")
    assert stats["policies_received"] == {"": 2}


async def _plan_across_a_change(path: Path, **names: list[str]) -> tuple[Plan, Plan]:
    """Two requests of one conversation: the policy changes under the first, the second gets no response."""

    async def change_once(stream: Stream) -> None:
        await stream.greet()
        (first,) = await stream.read_items()
        await stream.write(build_result(first, "r2"), policy=build_policy("r2", **names))
        while await stream.read_items():
            pass  # no response

    async with connect(path, change_once, known_timeout_s=0.01, unknown_timeout_s=0.5) as (
        _,
        client,
    ):
        headers = {"x-session-id": "h"}
        return await request_plan(client, headers=headers), await request_plan(client, headers=headers)


async def test_a_decision_by_a_policy_that_came_meanwhile_is_remembered(tmp_path: Path) -> None:
    """The new policy reads what was sent, so its decision is the conversation's."""
    first, again = await _plan_across_a_change(tmp_path / "s")
    assert (first.decision.origin, first.decision.policy_revision) == (Origin.SIDECAR, "r2")
    assert (again.decision.origin, again.conversation_id) == (Origin.MEMORY, first.conversation_id)


async def test_a_decision_by_a_policy_that_reads_other_carriers_is_not_remembered(tmp_path: Path) -> None:
    """The header that it reads as well was not sent, so it might have decided otherwise."""
    first, again = await _plan_across_a_change(tmp_path / "s", identity_headers=["x-session-id"])
    assert (first.decision.origin, again.decision.origin) == (Origin.SIDECAR, Origin.LOCAL_RULE)


async def test_a_decision_about_a_request_from_before_the_policy_is_remembered(tmp_path: Path) -> None:
    """Its key is that of the policy that came in between."""

    async def greet_late(stream: Stream) -> None:
        await stream.read()
        await submitted.wait()
        await stream.write(policy=build_policy(identity_headers=["x-session-id"]))
        await stream.write(*map(build_result, await stream.read_items()))
        await stream.read()

    submitted = asyncio.Event()
    header = {"headers": {"x-session-id": "named-by-a-header"}}
    async with connect(tmp_path / "s", greet_late, known_timeout_s=0.01, unknown_timeout_s=5.0) as (
        _,
        client,
    ):
        first = asyncio.create_task(request_plan(client, None, **header))
        await asyncio.sleep(0)
        submitted.set()
        assert (await first).decision.origin is Origin.SIDECAR
        again = await request_plan(client, None, **header)
        other = await request_plan(client, None, headers={"x-session-id": "another-conversation"})
    assert (again.decision.origin, again.conversation_id) == (Origin.MEMORY, "sidecar:")
    assert other.decision.origin is Origin.FORWARDED


@pytest.mark.parametrize("log_plain_ids", [True, False])
async def test_a_plain_id_is_logged_only_if_the_policy_says_so(tmp_path: Path, log_plain_ids: bool) -> None:
    async def converse(stream: Stream) -> None:
        await stream.greet(build_policy(log_plain_ids=log_plain_ids))
        await stream.respond_to_all()

    with capture_logs() as lines:
        async with connect(tmp_path / "s", converse) as (_, client):
            await request_plan(client)
    (line,) = [line for line in lines if line["event"] == "conversation_affinity_active"]
    assert line.get("conversation_id") == ("sidecar:conversation-0001" if log_plain_ids else None)
    assert ("conversation-0001" in repr(lines)) is log_plain_ids
