"""The sampled decision log of a real process."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from routing_hints.v1 import types_pb2
from tests.support.messages import CONVERSATION, CONVERSATION_HASH, HintsStub, make_request
from tests.support.sidecar import SidecarProcess

StartProcess = Callable[..., SidecarProcess]


def _log_lines(sidecar: SidecarProcess, requests: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Sends so many requests in both phases; returns the decisions in the log, and the ids of all."""
    ids = []
    with grpc.insecure_channel(sidecar.target) as channel:
        hints = HintsStub(channel)
        for number in range(requests):
            for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
                request = make_request(request_id=f"r-{number}", worker_id="w", phase=phase)
                ids.append(hints.Enrich(request).decision_id)
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    assert all(CONVERSATION not in line for line in sidecar.lines)
    lines = [json.loads(line) for line in sidecar.lines]
    return [line for line in lines if line["event"] == "decision"], ids


def _write_policy(folder: Path, percent: float) -> str:
    path = folder / "policy.yaml"
    path.write_text(f"operational: {{logging: {{decision_sample_percent: {percent}}}}}")
    return str(path)


def test_by_default_no_decision_is_logged(start_sidecar_process: StartProcess) -> None:
    assert _log_lines(start_sidecar_process(), 20)[0] == []


def test_a_logged_decision_has_its_id_and_the_conversation_as_its_hash(
    start_sidecar_process: StartProcess, tmp_path: Path
) -> None:
    """So that GetDecision can look it up."""
    sidecar = start_sidecar_process("--policy", _write_policy(tmp_path, 100))
    lines, ids = _log_lines(sidecar, 1)
    assert [line["decision_id"] for line in lines] == ids
    first = lines[0]
    assert (first["request_id"], first["worker_id"], first["phase"]) == ("r-0", "w", "prefill")
    assert (first["source"], first["directive"]) == ("header:x-session-id", "forward")
    assert (first["conversation_hash"], first["id_attached"]) == (CONVERSATION_HASH, False)


def test_a_sample_has_both_phases_of_its_requests(
    start_sidecar_process: StartProcess, tmp_path: Path
) -> None:
    sidecar = start_sidecar_process("--policy", _write_policy(tmp_path, 30))
    lines, _ = _log_lines(sidecar, 100)
    phases: dict[str, list[str]] = {}
    for line in lines:
        phases.setdefault(line["request_id"], []).append(line["phase"])
    assert 10 < len(phases) < 60
    assert all(of_one_request == ["prefill", "decode"] for of_one_request in phases.values())
