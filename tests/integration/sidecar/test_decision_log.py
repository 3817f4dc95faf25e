"""The sampled decision log of a real process."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarProcess

_SESSION = "conv-7f3a"
_HASH = "7c5832ae00b4609f"  # of docs/contract.md
StartProcess = Callable[..., SidecarProcess]


def _log_lines(sidecar: SidecarProcess, requests: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Asks about both legs of so many requests; returns the decisions in the log, and the answered ids."""
    ids = []
    with grpc.insecure_channel(sidecar.target) as channel:
        stub = service_pb2_grpc.RoutingHintsServiceStub(channel)
        for number in range(requests):
            for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
                identity = types_pb2.Identity(headers={"x-session-id": _SESSION})
                request = service_pb2.EnrichRequest(
                    request_id=f"r-{number}", worker_id="w", phase=phase, identity=identity
                )
                ids.append(stub.Enrich(request).decision_id)
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    assert all(_SESSION not in line for line in sidecar.lines)
    lines = [json.loads(line) for line in sidecar.lines]
    return [line for line in lines if line["event"] == "decision"], ids


def _write_policy(folder: Path, percent: float) -> str:
    path = folder / "policy.yaml"
    path.write_text(f"operational: {{logging: {{decision_sample_percent: {percent}}}}}")
    return str(path)


def test_by_default_no_request_is_logged(start_sidecar_process: StartProcess) -> None:
    """A line per request is what nobody wants at INFO."""
    assert _log_lines(start_sidecar_process(), 20)[0] == []


def test_a_logged_decision_can_be_looked_up(start_sidecar_process: StartProcess, tmp_path: Path) -> None:
    """The line has the decision's id and what was decided, the conversation as its hash."""
    sidecar = start_sidecar_process("--policy", _write_policy(tmp_path, 100))
    lines, ids = _log_lines(sidecar, 1)
    assert [line["decision_id"] for line in lines] == ids
    first = lines[0]
    assert (first["request_id"], first["worker_id"], first["phase"]) == ("r-0", "w", "prefill")
    assert (first["source"], first["directive"]) == ("header:x-session-id", "forward")
    assert (first["conversation_hash"], first["id_attached"]) == (_HASH, False)


def test_a_sample_has_both_legs_of_its_requests(start_sidecar_process: StartProcess, tmp_path: Path) -> None:
    """Some of the requests are logged, each with prefill and decode."""
    sidecar = start_sidecar_process("--policy", _write_policy(tmp_path, 30))
    lines, _ = _log_lines(sidecar, 100)
    legs: dict[str, list[str]] = {}
    for line in lines:
        legs.setdefault(line["request_id"], []).append(line["phase"])
    assert 10 < len(legs) < 60
    assert all(phases == ["prefill", "decode"] for phases in legs.values())
