"""What the client decides while the sidecar is unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from examples.fake_engine import CONVERSATION_PARAMS, RANK_ONLY, Release
from routing_hints.conversation_id import hash_conversation
from routing_hints.vocabulary import IdScope
from tests.support.builders import FORWARD, WITHHOLD, build_client, build_profile, build_request
from worker_client import AdpRouter, IdentitySource, Origin, Phase, RankDirective, RankSource
from worker_client._local_rule import resolve_locally
from worker_client._model import ClientPolicy
from worker_client._request import AgentContext, RequestFacts, SessionControl

LONG_ID = "conversation-0001"  # 17 bytes: not weak


def facts(session_id: str = LONG_ID, **fields: Any) -> RequestFacts:
    return RequestFacts(**{"agent_context": AgentContext(session_id), **fields})


def resolve(request: RequestFacts, policy: ClientPolicy | None = None, **engine: Any) -> Any:
    return resolve_locally(request, build_profile(**engine), policy or ClientPolicy())


def test_the_id_of_the_agent_context_is_attached_and_the_rank_withheld() -> None:
    """As Dynamo's own in-worker rule does, than which an outage must never be worse."""
    decision = resolve(facts())
    assert (decision.origin, decision.directive, decision.conversation_id) == (
        Origin.LOCAL_RULE,
        WITHHOLD,
        LONG_ID,
    )
    assert (decision.source, decision.source_detail) == (
        IdentitySource.AGENT_CONTEXT,
        "agent_context.session_id",
    )
    assert decision.conversation_hash == hash_conversation(LONG_ID)


@pytest.mark.parametrize(
    ("request_", "conversation_id"),
    [
        (facts(conversation_id="body-conversation"), "body-conversation"),
        (facts(session_control=SessionControl("control")), LONG_ID),
        (RequestFacts(session_control=SessionControl("control")), "control"),
        (RequestFacts(agent_context=AgentContext("run", trajectory_id="trajectory")), "trajectory"),
        (RequestFacts(agent_context=AgentContext("run", trajectory_id="null")), None),
        (facts(" padded-conversation "), "padded-conversation"),
        (facts("None", session_control=SessionControl("control")), "control"),
        (facts("  "), None),
        (RequestFacts(headers={"x-session-id": LONG_ID}), None),
    ],
)
def test_the_first_usable_structured_carrier_wins(
    request_: RequestFacts, conversation_id: str | None
) -> None:
    """In the policy's order; headers are left to the sidecar."""
    assert resolve(request_).conversation_id == conversation_id


@pytest.mark.parametrize(
    ("session_id", "tenant", "scope", "is_verbatim"),
    [
        ("1", "", IdScope.WEAK, True),
        ("1", "t", IdScope.WEAK, False),
        ("a" * 15, "t", IdScope.WEAK, False),
        ("a" * 16, "t", IdScope.WEAK, True),
        ("1", "t", IdScope.OFF, True),
        (LONG_ID, "t", IdScope.ALL, False),
        (LONG_ID, "", IdScope.ALL, True),
        ("a" * 256, "", IdScope.WEAK, True),
        ("a" * 257, "", IdScope.WEAK, False),
        ("é" * 129, "", IdScope.WEAK, False),
        ("rh1-0123", "", IdScope.OFF, False),
        ("tab\there", "", IdScope.OFF, False),
    ],
)
def test_only_ids_that_the_sidecar_passes_verbatim_are_resolved_alone(
    session_id: str, tenant: str, scope: IdScope, is_verbatim: bool
) -> None:
    """An outage never gives a conversation a second id."""
    decision = resolve(facts(session_id, tenant=tenant), ClientPolicy(scope=scope))
    assert decision.conversation_id == (session_id if is_verbatim else None)
    assert decision.directive is (WITHHOLD if is_verbatim else FORWARD)


def test_a_derived_id_of_the_first_carrier_is_not_replaced_by_a_later_carriers() -> None:
    """The sidecar would use the first one, too."""
    request = facts("a" * 257, session_control=SessionControl("control"))
    assert resolve(request).conversation_id is None


def test_a_policy_without_local_carriers_forwards() -> None:
    """Also for an engine whose router probes its caches: the policy may be off."""
    policy = ClientPolicy(local_sources=())
    decision = resolve(facts(), policy, adp_router=AdpRouter.KV_CACHE_AWARE, rank_source=RankSource.ENGINE)
    assert (decision.directive, decision.conversation_id, decision.origin) == (
        FORWARD,
        None,
        Origin.FORWARDED,
    )


@pytest.mark.parametrize(
    ("engine", "directive", "attaches"),
    [
        ({"rank_source": RankSource.ENGINE}, WITHHOLD, True),
        ({"rank_source": RankSource.ROUTER}, FORWARD, True),
        ({"rank_source": RankSource.SIDECAR, "records_first_rank": True}, FORWARD, True),
        ({"rank_source": RankSource.SIDECAR}, FORWARD, False),
        ({"adp_router": AdpRouter.DEFAULT}, FORWARD, False),
        ({"adp_router": AdpRouter.UNKNOWN}, FORWARD, False),
        ({"adp_router": AdpRouter.DEFAULT, "wants_conversation_id": True}, FORWARD, True),
        ({"adp_router": AdpRouter.KV_CACHE_AWARE}, FORWARD, False),
        ({"adp_router": AdpRouter.KV_CACHE_AWARE, "rank_source": RankSource.ENGINE}, WITHHOLD, False),
    ],
    ids=str,
)
def test_the_directive_is_that_of_the_sidecars_table(
    engine: dict[str, Any], directive: RankDirective, attaches: bool
) -> None:
    """Row by row, without placement, which only the sidecar has."""
    decision = resolve(facts(), **engine)
    assert (decision.directive, decision.conversation_id is not None) == (directive, attaches)


@pytest.mark.parametrize("release", [RANK_ONLY, CONVERSATION_PARAMS], ids=lambda r: r.name)
def test_a_conversation_router_without_an_id_forwards(release: Release) -> None:
    """Withholding would lose both kinds of placement."""
    decision = resolve_locally(RequestFacts(), build_profile(release), ClientPolicy())
    assert (decision.directive, decision.conversation_hash) == (FORWARD, "")


async def test_the_local_rule_can_be_switched_off() -> None:
    client = build_client(None, local_rule=False)
    plan = await client.plan(build_request(), phase=Phase.PREFILL, engine=build_profile())
    assert (plan.decision.origin, plan.conversation_id) == (Origin.FORWARDED, None)
