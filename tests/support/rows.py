"""Sends a captured request through client and sidecar, and holds what comes out against its row."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from examples.fake_engine import Release, install
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2
from sidecar.decision.service import DecisionService
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.server.enrichment import Enricher
from sidecar.telemetry import metrics
from sidecar.wire.response_codec import encode_client_policy, serialize_decision
from tests.support.captures import (
    CapturedContext,
    asked_phase,
    build_disaggregated_params,
    load_row_capture,
    release_of,
)
from worker_client import (
    AdpRouter,
    Affinity,
    ClientConfig,
    Decision,
    EngineDialect,
    EngineProfile,
    Phase,
    Plan,
    RankSource,
    RequestKind,
    RoutingHintClient,
    _codec,
)
from worker_client._request import RequestFacts
from worker_client.testing import FakeClient

NOT_SUBMITTED = ("health_check", "warmup")
PATIENT_S = 20.0
"""Longer than any decision takes, so that no row is decided by a deadline."""


def affinity_of(row: dict[str, Any]) -> Affinity:
    """The client's gate of a row."""
    return Affinity(row.get("affinity", "auto"))


def decide_in_process(row: dict[str, Any]) -> FakeClient:
    """A client whose decisions are the sidecar's under the row's policy, without a server in between.

    The messages of the contract are in between, as on a socket, so that the codecs of both sides take part.
    """
    holder = PolicyHolder(activate(Policy.model_validate(row.get("policy") or {})))
    store = MetricStore(metrics.TABLE)
    service = DecisionService(
        lambda: holder.current.compiled,
        store,
        serialize_decision,
        clock=time.monotonic,
        wall_clock=time.time,
        on_pause=lambda key: None,
        on_generation=lambda worker_id: None,
        on_ended=lambda conversation: None,
    )
    enricher = Enricher(service, store, tracer=None)
    policy = _codec.decode_policy(encode_client_policy(holder.current.view))

    def decide(facts: RequestFacts, engine: EngineProfile) -> Decision:
        response = service_pb2.EnrichResponse()
        enricher.enrich(_codec.encode_request(facts, policy, engine), response)
        return _codec.decode_decision(response)

    return FakeClient(decide, config=ClientConfig(affinity=affinity_of(row)))


async def list_differences(row: dict[str, Any], client: RoutingHintClient) -> list[str]:
    """Sends the row's request and returns how the outcome differs from what the row expects."""
    capture = load_row_capture(row)
    release = release_of(row["engine"])
    given = build_disaggregated_params(capture, release)
    call = dict(row.get("call") or {})
    if "kind" in call:
        call["kind"] = RequestKind[call["kind"].upper()]
    with install(release):
        pending = client.plan(
            capture["worker_request"],
            CapturedContext(capture),
            phase=Phase[asked_phase(capture).upper()],
            engine=profile_of(row["engine"]),
            **call,
        )
        async with pending as plan:
            kwargs = plan.engine_kwargs(disaggregated_params=given)
    differences = [*_compare_decision(row, plan), *_compare_kwargs(row["expect"], kwargs, given, release)]
    return [f"{what}: {got!r} instead of {wanted!r}" for what, got, wanted in differences if got != wanted]


def profile_of(engine: dict[str, Any]) -> EngineProfile:
    """The profile of a row's engine."""
    return EngineProfile(
        dialect=EngineDialect[engine["dialect"].upper()],
        adp_router=AdpRouter[engine["adp_router"].upper()],
        rank_source=RankSource[(engine["rank_source"] or "unspecified").upper()],
        dp_size=engine["dp_size"],
        records_first_rank=engine["records_first_rank"],
        subagent_affinity=engine["subagent_affinity"],
        wants_conversation_id=engine["wants_conversation_id"],
    )


def _compare_decision(row: dict[str, Any], plan: Plan) -> list[tuple[str, Any, Any]]:
    expect, decision = row["expect"], plan.decision
    compared: list[tuple[str, Any, Any]] = [
        ("phase", plan.phase.name.lower(), expect["phase"]),
        ("directive", decision.directive.name.lower(), expect["directive"]),
        (
            "applied directive",
            plan.applied_directive.name.lower(),
            expect.get("applied_directive", expect["directive"]),
        ),
        (
            "decided id",
            decision.conversation_id,
            expect.get("answered_conversation_id", expect["conversation_id"]),
        ),
    ]
    is_submitted = row.get("affinity") != "off" and (row.get("call") or {}).get("kind") not in NOT_SUBMITTED
    compared.append(("decided by the sidecar", not plan.reason, is_submitted))
    if is_submitted:
        if expect["source"] is not None:
            compared.append(("source", decision.source.name.lower(), expect["source"]))
            compared.append(("source detail", decision.source_detail, expect["source_detail"]))
        if "affinity_key" in expect:
            compared.append(("affinity key", decision.affinity_key, expect["affinity_key"]))
        missing = set(expect.get("notices", ())) - set(decision.notices)
        compared.append(("missing notices", missing, set()))
    return compared


def _compare_kwargs(
    expect: dict[str, Any], kwargs: dict[str, Any], given: Any, release: Release
) -> list[tuple[str, Any, Any]]:
    wanted = expect["engine_kwargs"]
    names = {"disaggregated_params", "scheduling_params"} | wanted.keys()
    conversation = kwargs.get("conversation_params")
    compared: list[tuple[str, Any, Any]] = [
        ("arguments", set(kwargs), names),
        (
            "scheduling_params",
            _set_fields(kwargs["scheduling_params"]),
            _drop_nulls(wanted["scheduling_params"]),
        ),
        (
            "conversation_params",
            getattr(conversation, "conversation_id", None),
            wanted.get("conversation_params"),
        ),
    ]
    params = kwargs["disaggregated_params"]
    if "disaggregated_params" in wanted:
        holds = None if params is None else {"conversation_id": params.conversation_id}
        compared.append(("disaggregated_params", holds, wanted["disaggregated_params"]))
    else:
        compared.append(("disaggregated_params", params, given))
    if params is not None:
        compared.append(("its class", type(params), release.disaggregated_params))
    return compared


def _set_fields(params: Any) -> dict[str, Any] | None:
    if params is None:
        return None
    return _drop_nulls({field.name: getattr(params, field.name) for field in dataclasses.fields(params)})


def _drop_nulls(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    return fields and {name: value for name, value in fields.items() if value is not None}
