"""Sends a captured request through client and sidecar, and holds what comes out against its row."""

from __future__ import annotations

import dataclasses
from typing import Any

from examples.fake_engine import Release, install
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
    EngineDialect,
    EngineProfile,
    Phase,
    Plan,
    RankSource,
    RequestKind,
    RoutingHintClient,
)

NOT_ASKED = ("health_check", "warmup")
PATIENT_S = 20.0
"""Longer than any answer takes, so that no row is decided by a deadline."""


def affinity_of(row: dict[str, Any]) -> Affinity:
    """The client's gate of a row."""
    return Affinity(row.get("affinity", "auto"))


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
    differences = [*_compare_answer(row, plan), *_compare_kwargs(row["expect"], kwargs, given, release)]
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


def _compare_answer(row: dict[str, Any], plan: Plan) -> list[tuple[str, Any, Any]]:
    expect, answer = row["expect"], plan.answer
    compared: list[tuple[str, Any, Any]] = [
        ("phase", plan.phase.name.lower(), expect["phase"]),
        ("directive", answer.directive.name.lower(), expect["directive"]),
        (
            "applied directive",
            plan.applied_directive.name.lower(),
            expect.get("applied_directive", expect["directive"]),
        ),
        (
            "answered id",
            answer.conversation_id,
            expect.get("answered_conversation_id", expect["conversation_id"]),
        ),
    ]
    is_asked = row.get("affinity") != "off" and (row.get("call") or {}).get("kind") not in NOT_ASKED
    compared.append(("asked", not plan.reason, is_asked))
    if is_asked:
        if expect["source"] is not None:
            compared.append(("source", answer.source.name.lower(), expect["source"]))
            compared.append(("source detail", answer.source_detail, expect["source_detail"]))
        if "affinity_key" in expect:
            compared.append(("affinity key", answer.affinity_key, expect["affinity_key"]))
        missing = set(expect.get("notices", ())) - set(answer.notices)
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
