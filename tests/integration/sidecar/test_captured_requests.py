"""Captured requests through the real client and the real sidecar, against hand-written expectations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.support.builders import build_profile
from tests.support.captures import (
    CapturedContext,
    asked_phase,
    describe_row,
    list_captures,
    load_capture,
    load_rows,
)
from tests.support.rows import affinity_of, list_differences
from tests.support.sidecar import SidecarProcess, make_client
from worker_client import EngineProfile, Origin, Phase

ROWS = load_rows()
BOTH_PHASES = sorted(
    name.replace("/prefill_", "/*_")
    for name in list_captures()
    if "/prefill_" in name and name.replace("/prefill_", "/decode_") in list_captures()
)


@pytest.mark.parametrize("row", ROWS, ids=describe_row)
async def test_captured_request_gives_what_its_row_expects(
    row: dict[str, Any], start_sidecar: Callable[..., Any]
) -> None:
    """Identity, directive and engine parameters; the rows were read from the rules by hand."""
    sidecar = await start_sidecar(yaml.safe_dump(row.get("policy") or {}))
    async with make_client(sidecar.target, affinity=affinity_of(row)) as client:
        assert await list_differences(row, client) == []


@pytest.mark.parametrize("name", sorted(list_captures()))
async def test_planning_changes_nothing_in_the_request(name: str, sidecar: Any) -> None:
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


async def test_two_sidecars_derive_the_same_id_in_both_phases(
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """Without any coordination: the prefill worker's and the decode worker's."""
    named: dict[str, list[tuple[str | None, str]]] = {name: [] for name in BOTH_PHASES}
    for phase in ("prefill", "decode"):
        process = start_sidecar_process(socket_name=f"{phase}.sock")
        async with make_client(process.target) as client:
            for name, ids in named.items():
                capture = load_capture(name.replace("*", phase))
                plan = await client.plan(
                    capture["worker_request"],
                    CapturedContext(capture),
                    phase=Phase[phase.upper()],
                    engine=build_profile(),
                )
                assert plan.decision.origin is Origin.SIDECAR
                ids.append((plan.conversation_id, plan.conversation_hash))
    assert [name for name, (prefill, decode) in named.items() if prefill != decode] == []
    assert sum(1 for ids in named.values() if ids[0][0] is not None) > len(BOTH_PHASES) / 2


@pytest.mark.parametrize("name", [name for name in sorted(list_captures()) if "noaffinity" in name])
async def test_gate_off_gives_the_engine_what_dynamos_own_handler_gives_with_affinity_off(name: str) -> None:
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
        assert client.stats()["skipped_requests"] == {"gate-off": 1}
