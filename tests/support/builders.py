"""Engine profiles, requests and answers for the client's tests."""

from __future__ import annotations

from typing import Any

from examples.fake_engine import CONVERSATION_PARAMS, DISAGGREGATED_PARAMS, RANK_ONLY, Release
from worker_client import (
    AdpRouter,
    Answer,
    EngineDialect,
    EngineProfile,
    EngineTypes,
    IdentitySource,
    Origin,
    Phase,
    Plan,
    RankDirective,
)
from worker_client.testing import FakeClient

DIALECTS = {
    RANK_ONLY.name: EngineDialect.RANK_ONLY,
    DISAGGREGATED_PARAMS.name: EngineDialect.DISAGGREGATED_PARAMS,
    CONVERSATION_PARAMS.name: EngineDialect.CONVERSATION_PARAMS,
}


def build_types(release: Release) -> EngineTypes:
    """The parameter classes of a release."""
    return EngineTypes(
        scheduling_params=release.scheduling_params,
        conversation_params=release.conversation_params,
        disaggregated_params=release.disaggregated_params,
    )


def build_profile(release: Release = CONVERSATION_PARAMS, **fields: Any) -> EngineProfile:
    """An engine of four ranks whose router pins conversations, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "dialect": DIALECTS[release.name],
        "adp_router": AdpRouter.CONVERSATION,
        "dp_size": 4,
        "instance_id": "engine-1",
        "types": build_types(release),
    }
    return EngineProfile(**{**defaults, **fields})


def build_request(session_id: str | None = "conversation-0001", rank: object = None) -> dict[str, Any]:
    """A request in Dynamo's shape, of a conversation and with the router's rank, where given."""
    request: dict[str, Any] = {"model": "m", "token_ids": [1, 2, 3], "routing": {}}
    if session_id is not None:
        request["agent_context"] = {"session_id": session_id}
    if rank is not None:
        request["routing"]["dp_rank"] = rank
    return request


def build_answer(directive: RankDirective, conversation_id: str | None = None, **fields: Any) -> Answer:
    """A sidecar's answer."""
    defaults: dict[str, Any] = {
        "affinity_key": conversation_id,
        "source": IdentitySource.AGENT_CONTEXT,
        "source_detail": "agent_context.session_id",
        "conversation_hash": "0123456789abcdef",
        "policy_revision": "r1",
    }
    return Answer(directive, Origin.SIDECAR, conversation_id, **{**defaults, **fields})


async def make_plan(
    answer: Answer | None,
    engine: EngineProfile,
    *,
    request: object = None,
    context: object = None,
    phase: Phase = Phase.PREFILL,
    client: FakeClient | None = None,
) -> Plan:
    """The plan of one request that the sidecar answers with `answer`."""
    client = client or FakeClient(lambda facts, profile: answer)
    return await client.plan(request or build_request(), context, phase=phase, engine=engine)
