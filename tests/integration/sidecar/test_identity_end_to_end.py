"""What a worker receives, through the real client and the real sidecar, to the engine parameters."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.builders import build_profile
from tests.support.messages import AdminStub, HintsStub, make_request
from tests.support.sidecar import SidecarServer, make_client, sum_metric
from tests.support.wait import wait_until
from worker_client import Origin, Phase

ENGINE = build_profile(subagent_affinity=True)
SESSION = "5b0f6d1e-7c1a-4a52-9d2e-0b7a4a1c9f10"
SHA256 = "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2


class Context:
    """Dynamo's context, as far as it matters here."""

    def __init__(self, metadata: dict[str, str] | None = None) -> None:
        self.metadata = metadata or {}

    def id(self) -> str:
        """The request's id."""
        return "r-1"


@pytest.mark.parametrize(
    ("request_fields", "arguments", "detail", "conversation_id", "affinity_key"),
    [
        ({}, {"body": {"conversation": "conv_1"}}, "body:conversation", "conv_1", "conv_1"),
        ({}, {"body": {"conversation": {"id": "conv_1"}}}, "body:conversation.id", "conv_1", "conv_1"),
        (
            {},
            {"body": {"metadata": {"user_id": f"user_{SHA256}_account__session_{SESSION}"}}},
            "body:metadata.user_id",
            SESSION,
            SESSION,
        ),
        (
            {},
            {"body": {"metadata": {"user_id": f'{{"device_id":"d","session_id":"{SESSION}"}}'}}},
            "body:metadata.user_id",
            SESSION,
            SESSION,
        ),
        ({}, {"body": {"litellm_session_id": "conv_1"}}, "body:litellm_session_id", "conv_1", "conv_1"),
        (
            {},
            {"context": Context({"conversation-id": "conv_1"})},
            "metadata:conversation-id",
            "conv_1",
            "conv_1",
        ),
        ({"annotations": ["conversation_id:conv_1"]}, {}, "annotation:conversation_id", "conv_1", "conv_1"),
        (
            {"agent_context": {"agent_headers": {"thread-id": ["t-2"], "session-id": ["tree"]}}},
            {},
            "header:thread-id",
            "t-2",
            "tree",
        ),
        (
            {},
            {
                "headers": {
                    "Thread-Id": "t-2",
                    "X-Codex-Turn-Metadata": '{"thread_id": "t-2", "parent_thread_id": "t-1"}',
                }
            },
            "header:thread-id",
            "t-2",
            "t-1",
        ),
        ({}, {"headers": {"baggage": "session.id=conv_1"}}, "baggage:session.id", "conv_1", "conv_1"),
    ],
    ids=str,
)
async def test_each_kind_of_carrier_reaches_the_engine(
    sidecar: SidecarServer,
    request_fields: dict[str, Any],
    arguments: dict[str, Any],
    detail: str,
    conversation_id: str,
    affinity_key: str,
) -> None:
    async with make_client(sidecar.target) as client:
        plan = await client.plan(request_fields, phase=Phase.PREFILL, engine=ENGINE, **arguments)
    assert plan.decision.origin is Origin.SIDECAR
    assert (plan.decision.source_detail, plan.conversation_id) == (detail, conversation_id)
    assert plan.decision.affinity_key == affinity_key
    assert "value-not-text-dropped" not in plan.notices


async def test_a_conversation_is_remembered_although_a_header_changes_each_turn(
    sidecar: SidecarServer,
) -> None:
    """Codex's turn metadata is new on every request; an outage must not make it a new conversation."""
    async with make_client(sidecar.target) as client:
        plans = []
        for turn in range(2):
            if turn:
                await sidecar.app.stop(drain_timeout_s=0)
            metadata = f'{{"thread_id": "t-2", "turn_id": "{turn}"}}'
            headers = {"thread-id": "t-2", "x-codex-turn-metadata": metadata}
            plans.append(await client.plan({}, phase=Phase.PREFILL, engine=ENGINE, headers=headers))
    assert [plan.decision.origin for plan in plans] == [Origin.SIDECAR, Origin.MEMORY]
    assert [plan.conversation_id for plan in plans] == ["t-2", "t-2"]


async def test_a_request_from_before_the_first_policy_is_remembered_by_the_carriers_that_it_sent(
    sidecar: SidecarServer,
) -> None:
    """Otherwise all requests without these carriers would share its id while the sidecar is away."""
    async with make_client(sidecar.target) as client:
        headers = {"thread-id": "t-1"}
        first = await client.plan({}, phase=Phase.PREFILL, engine=ENGINE, headers=headers)
        await sidecar.app.stop(drain_timeout_s=0)
        nameless = await client.plan({}, phase=Phase.PREFILL, engine=ENGINE)
        same = await client.plan({}, phase=Phase.PREFILL, engine=ENGINE, headers=headers)
    assert first.conversation_id == "t-1"
    assert (nameless.decision.origin, nameless.conversation_id) == (Origin.FORWARDED, None)
    assert (same.decision.origin, same.conversation_id) == (Origin.MEMORY, "t-1")


async def test_a_last_request_ends_its_conversation_when_it_finishes(
    sidecar: SidecarServer, admin: AdminStub
) -> None:
    """By the client's finish report, whether a header or `session_control` states it."""
    final: list[dict[str, Any]] = [
        {"headers": {"x-session-id": "conv-1", "X-Dynamo-Session-Final": "true"}},
        {"request": {"routing": {"session_control": {"session_id": "conv-2", "action": "close"}}}},
    ]
    async with make_client(sidecar.target) as client:
        for number, arguments in enumerate(final):
            request = arguments.pop("request", {})
            async with client.plan(request, phase=Phase.PREFILL, engine=ENGINE, **arguments) as plan:
                assert "session-final" in plan.notices
                assert plan.conversation_id is not None
                assert await sum_metric(admin, "ended_conversations") == number

            async def is_taken(number: int = number) -> bool:
                return await sum_metric(admin, "finishes") > number

            await wait_until(is_taken, "the finish report")
    assert await sum_metric(admin, "ended_conversations") == 2
    assert await sum_metric(admin, "final_requests") == 2


async def test_explain_shows_the_timeout_that_has_no_effect(hints: HintsStub) -> None:
    """For an operator who wonders about the timeout of `session_control`."""
    control = types_pb2.SessionControl(session_id="conv-7f3a", action="open", timeout=300)
    request = make_request(identity=types_pb2.Identity(session_control=control))
    explained = await hints.Explain(service_pb2.ExplainRequest(request=request))
    taken = [
        carrier for carrier in explained.carriers if carrier.verdict == service_pb2.CARRIER_VERDICT_TAKEN
    ]
    assert [(carrier.name, list(carrier.remarks)) for carrier in taken] == [
        ("session_control.session_id", ["timeout-not-used:300s"])
    ]
