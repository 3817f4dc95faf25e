"""Reads the captured requests and their hand-written expectations in tests/data."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    SUBAGENT_AFFINITY,
    Release,
)

DATA = Path(__file__).parents[1] / "data"
PHASES = {"agg": "aggregated", "prefill": "prefill", "decode": "decode"}


def load_rows() -> list[dict[str, Any]]:
    """Every row of expectations.yaml, in order."""
    rows: list[dict[str, Any]] = yaml.safe_load((DATA / "expectations.yaml").read_text())
    return rows


def describe_row(row: dict[str, Any]) -> str:
    """A test id for a row: capture, rule and engine."""
    engine = row["engine"]
    return f"{row['capture']}-{row['rule']}-{engine['dialect']}-{engine['adp_router']}"


def load_capture(name: str, folder: str = "captures") -> dict[str, Any]:
    """One capture; what it holds as base64 becomes bytes again."""
    text = (DATA / folder / f"{name}.json").read_text()
    capture: dict[str, Any] = json.loads(text, object_hook=_decode_bytes)
    return capture


def load_row_capture(row: dict[str, Any]) -> dict[str, Any]:
    """The capture of a row, without the request keys that the row leaves out."""
    capture = load_capture(row["capture"])
    for key in row.get("without", ()):
        del capture["worker_request"][key]
    return capture


def list_captures() -> set[str]:
    """The names of all captures, as rows spell them."""
    root = DATA / "captures"
    return {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.json")}


def asked_phase(capture: dict[str, Any]) -> str:
    """The phase of the worker's role, lower case."""
    return PHASES[capture["worker_role"].rpartition("_")[2]]


class CapturedContext:
    """The worker's context object; an attribute that the release has not is an AttributeError."""

    def __init__(self, capture: dict[str, Any]) -> None:
        captured = capture["worker_context"]
        self._id = captured["id"]
        if "metadata" not in captured.get("missing", ()):
            self.metadata = captured["metadata"]

    def id(self) -> str:
        """The request's id, the same in both phases."""
        return str(self._id)


def release_of(engine: dict[str, Any]) -> Release:
    """The fake engine's release for the engine of a row."""
    if engine["subagent_affinity"]:
        return SUBAGENT_AFFINITY
    releases = (RANK_ONLY, DISAGGREGATED_PARAMS, CONVERSATION_PARAMS)
    return next(release for release in releases if release.name == engine["dialect"])


def build_disaggregated_params(capture: dict[str, Any], release: Release) -> Any:
    """What the worker's own handler passes as `disaggregated_params`: None in an aggregated phase."""
    phase = asked_phase(capture)
    if phase == "aggregated":
        return None
    if phase == "prefill":
        return release.disaggregated_params(request_type="context_only")
    if "prefill_result" not in capture["worker_request"]:
        return None
    fields = dict(capture["worker_request"]["prefill_result"]["disaggregated_params"])
    if "sample_handle" in fields:
        # The unified captures come from Dynamo's sample engine; its hand-over is not TensorRT-LLM's.
        fields = {"ctx_request_id": 1, "first_gen_tokens": fields["completed_tokens"], "opaque_state": ""}
    fields["request_type"] = "generation_only"
    fields["opaque_state"] = base64.b64decode(fields["opaque_state"])
    return release.disaggregated_params(**fields)


def _decode_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["__bytes_b64__"]) if "__bytes_b64__" in value else value
