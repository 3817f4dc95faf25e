"""Captured requests through the real client and the real sidecar, against hand-written expectations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.support.captures import (
    CapturedContext,
    asked_phase,
    describe_row,
    list_captures,
    load_capture,
    load_rows,
)
from tests.support.rows import PATIENT_S, affinity_of, list_differences
from tests.support.sidecar import SidecarProcess
from worker_client import (
    AdpRouter,
    ClientConfig,
    EngineDialect,
    EngineProfile,
    Origin,
    Phase,
    RoutingHintClient,
)

ROWS = load_rows()
LEGS = sorted(
    name.replace("/prefill_", "/*_")
    for name in list_captures()
    if "/prefill_" in name and name.replace("/prefill_", "/decode_") in list_captures()
)


def make_client(target: str, **settings: Any) -> RoutingHintClient:
    """A client that no deadline hurries."""
    config = ClientConfig(
        target=target.replace("unix:", "unix://"),
        known_timeout_s=PATIENT_S,
        unknown_timeout_s=PATIENT_S,
        **settings,
    )
    return RoutingHintClient(config)


@pytest.mark.parametrize("row", ROWS, ids=describe_row)
async def test_captured_request_gives_what_its_row_expects(
    row: dict[str, Any], start_sidecar: Callable[..., Any]
) -> None:
    """Identity, directive and engine parameters are those that were read from the design by hand."""
    sidecar = await start_sidecar(yaml.safe_dump(row.get("policy") or {}))
    async with make_client(sidecar.target, affinity=affinity_of(row)) as client:
        assert await list_differences(row, client) == []


@pytest.mark.parametrize("name", sorted(list_captures()))
async def test_planning_leaves_the_request_alone(name: str, sidecar: Any) -> None:
    """The request that a worker goes on with is the one that it was given."""
    capture = load_capture(name)
    before = copy.deepcopy(capture["worker_request"])
    async with make_client(sidecar.target) as client:
        await client.plan(
            capture["worker_request"],
            CapturedContext(capture),
            phase=Phase[asked_phase(capture).upper()],
            engine=EngineProfile(),
        )
    assert before == capture["worker_request"]


async def test_both_legs_and_a_second_process_give_one_id(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """Two sidecars that know nothing of each other name every conversation alike, on either leg."""
    engine = EngineProfile(
        dialect=EngineDialect.CONVERSATION_PARAMS, adp_router=AdpRouter.CONVERSATION, dp_size=4
    )
    named: dict[str, list[tuple[str | None, str]]] = {legs: [] for legs in LEGS}
    for leg in ("prefill", "decode"):
        process = start_sidecar_process(socket_name=f"{leg}.sock")
        async with make_client(process.target) as client:
            for legs, answers in named.items():
                capture = load_capture(legs.replace("*", leg))
                plan = await client.plan(
                    capture["worker_request"],
                    CapturedContext(capture),
                    phase=Phase[leg.upper()],
                    engine=engine,
                )
                assert plan.answer.origin is Origin.SIDECAR
                answers.append((plan.conversation_id, plan.conversation_hash))
    assert [legs for legs, (prefill, decode) in named.items() if prefill != decode] == []
    assert sum(1 for answers in named.values() if answers[0][0] is not None) > len(LEGS) / 2


@pytest.mark.parametrize("name", [name for name in sorted(list_captures()) if "noaffinity" in name])
async def test_gate_off_sends_what_a_worker_without_this_project_sends(name: str) -> None:
    """The engine call has the parameters that Dynamo's own handler gave it with its affinity off."""
    capture = load_capture(name)
    row = {
        "capture": name,
        "affinity": "off",
        "engine": next(row["engine"] for row in ROWS if row["capture"] == name),
        "expect": {
            "phase": asked_phase(capture),
            "directive": "forward",
            "conversation_id": None,
            "engine_kwargs": {
                "scheduling_params": {
                    field: value
                    for field, value in capture["trtllm_engine_call"]["scheduling_params"].items()
                    if field != "__class__"
                }
            },
        },
    }
    async with make_client("unix:/nowhere", affinity=affinity_of(row)) as client:
        assert await list_differences(row, client) == []
        assert client.stats()["not_asked"] == {"gate-off": 1}
