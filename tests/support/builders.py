"""Engine profiles, requests, decisions and engine outputs for the client's tests."""

from __future__ import annotations

import asyncio
from typing import Any

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    CompletionOutput,
    Release,
    RequestOutput,
)
from worker_client import (
    AdpRouter,
    ClientConfig,
    Decision,
    EngineDialect,
    EngineProfile,
    EngineTypes,
    IdentitySource,
    Origin,
    Phase,
    Plan,
    RankDirective,
)
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest
from worker_client._request import RequestFacts
from worker_client.testing import FakeClient

FORWARD, WITHHOLD, PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE

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
        attention_dp_config=release.attention_dp_config,
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


ENGINE = build_profile()
"""The engine of every test that needs no other."""


def build_request(
    session_id: str | None = "conversation-0001", rank: object = None, **fields: Any
) -> dict[str, Any]:
    """A request in Dynamo's shape, of a conversation and with the router's rank, where given."""
    request: dict[str, Any] = {"model": "m", "token_ids": [1, 2, 3], "routing": {}}
    if session_id is not None:
        request["agent_context"] = {"session_id": session_id}
    if rank is not None:
        request["routing"]["dp_rank"] = rank
    return {**request, **fields}


def build_pending(
    facts: RequestFacts | None = None,
    engine: EngineProfile = ENGINE,
    policy: ClientPolicy | None = None,
    applied: Decision | None = None,
) -> PendingRequest:
    """A request that was submitted just now, in the running loop; one that is not applied is waited for."""
    loop = asyncio.get_running_loop()
    return PendingRequest(
        facts or RequestFacts(phase=Phase.PREFILL),
        engine,
        policy or ClientPolicy(),
        loop.time(),
        reply=loop.create_future() if applied is None else None,
        applied=applied,
    )


def build_decision(directive: RankDirective, conversation_id: str | None = None, **fields: Any) -> Decision:
    """A decision of the sidecar."""
    defaults: dict[str, Any] = {
        "affinity_key": conversation_id,
        "source": IdentitySource.AGENT_CONTEXT,
        "source_detail": "agent_context.session_id",
        "conversation_hash": "0123456789abcdef",
        "policy_revision": "r1",
    }
    return Decision(directive, Origin.SIDECAR, conversation_id, **{**defaults, **fields})


def build_output(rank: object, cached_tokens: int = 8) -> RequestOutput:
    """An engine output of a context request that ran on `rank`."""
    params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only", ctx_dp_rank=rank)
    completion = CompletionOutput(token_ids=[1], finish_reason="length", disaggregated_params=params)
    return RequestOutput(request_id=1, outputs=[completion], finished=True, cached_tokens=cached_tokens)


def build_client(decision: Decision | None, **config: Any) -> FakeClient:
    """A client whose sidecar always decides so; None is a sidecar that is unavailable."""
    return FakeClient(lambda facts, engine: decision, config=ClientConfig(**config))


async def make_plan(
    decision: Decision | None,
    engine: EngineProfile,
    *,
    request: object = None,
    context: object = None,
    phase: Phase = Phase.PREFILL,
    client: FakeClient | None = None,
) -> Plan:
    """The plan of one request about which the sidecar decides `decision`."""
    client = client or build_client(decision)
    return await client.plan(request or build_request(), context, phase=phase, engine=engine)
