"""docs/identity.md: its table of what arrives is what the captures show, and it names every carrier."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.captures import DATA, load_capture

PAGE = (Path(__file__).parents[2] / "docs" / "identity.md").read_text(encoding="utf-8")
RELEASES = ["1.1", "1.2", "1.3", "1.6"]

# Row of the table, column, and a capture of a request with just that carrier.
CELLS = [
    ("nvext.session_control", "1.1", "1.1.1/agg_nvext_session_control_noaction"),
    ("nvext.session_control", "1.2", "1.2.1/agg_nvext_session_control_child"),
    ("nvext.agent_context", "1.1", "1.1.1/agg_nvext_agent_context_v12"),
    ("nvext.agent_context", "1.2", "1.2.1/agg_nvext_agent_context_v12_child"),
    ("nvext.annotations", "1.1", "1.1.1/agg_nvext_annotations"),
    ("nvext.annotations", "1.2", "1.2.1/agg_nvext_annotations"),
    ("nvext.annotations", "1.3", "1.3.1/agg_nvext_annotations"),
    ("nvext.annotations", "1.6", "1.6.1/agg_nvext_annotations"),
    ("x-dynamo-meta-conversation-id", "1.1", "1.1.1/agg_hdr_meta"),
    ("x-dynamo-meta-conversation-id", "1.2", "1.2.1/agg_hdr_meta"),
    ("x-dynamo-meta-conversation-id", "1.3", "1.3.1/agg_hdr_meta"),
    ("x-dynamo-meta-conversation-id", "1.6", "1.6.1/agg_hdr_meta"),
    ("x-dynamo-session-id", "1.1", "1.1.1/agg_hdr_dynamo_session_padded"),
    ("x-dynamo-session-id", "1.2", "1.2.1/agg_hdr_dynamo_session"),
    ("x-dynamo-session-id", "1.3", "1.3.1/agg_hdr_dynamo_session"),
    ("x-dynamo-session-id", "1.6", "1.6.1/agg_hdr_dynamo_session"),
    ("x-claude-code-session-id", "1.1", "1.1.1/agg_hdr_claude_session"),
    ("x-claude-code-session-id", "1.2", "1.2.1/agg_hdr_claude_session"),
    ("x-claude-code-session-id", "1.3", "1.3.1/agg_hdr_claude_session_agent"),
    ("x-claude-code-session-id", "1.6", "1.6.1/agg_hdr_claude_session_agent"),
    ("x-session-id", "1.1", "1.1.1/agg_hdr_opencode_session"),
    ("x-session-id", "1.6", "1.6.1/agg_hdr_opencode_session_parent"),
    ("thread-id", "1.1", "1.1.1/agg_hdr_codex_thread"),
    ("thread-id", "1.3", "1.3.1/agg_hdr_codex_thread"),
    ("x-session-affinity", "1.3", "1.3.1/agg_hdr_x_session_affinity"),
    ("x-session-affinity", "1.6", "1.6.1/agg_hdr_x_session_affinity"),
    ("x-correlation-id", "1.3", "1.3.1/agg_hdr_x_correlation_id"),
    ("x-correlation-id", "1.6", "1.6.1/agg_hdr_x_correlation_id"),
    ("x-deepseek-harness-session-id", "1.3", "1.3.1/agg_hdr_deepseek_session"),
    ("x-deepseek-harness-session-id", "1.6", "1.6.1/agg_hdr_deepseek_session"),
]
# The same of captures that show nothing else.
FURTHER_CELLS = [
    ("nvext.session_control", "1.3", "1.3.1/rejected_nvext_session_control_open"),
    ("nvext.session_control", "1.6", "1.6.1/rejected_nvext_session_control_open"),
    ("action: bind", "1.1", "1.1.1/rejected_nvext_session_control_bind"),
    ("action: bind", "1.2", "1.2.1/rejected_nvext_session_control_bind"),
    ("action: bind", "1.3", "1.3.1/rejected_nvext_session_control_bind"),
    ("action: bind", "1.6", "1.6.1/rejected_nvext_session_control_bind"),
    ("nvext.agent_context", "1.3", "1.3.1/rejected_nvext_agent_context_v12"),
    ("without one", "1.1", "1.1.1/agg_nvext_agent_context"),
    ("without one", "1.2", "1.2.1/rejected_nvext_agent_context_session_only"),
    ("without one", "1.3", "1.3.1/rejected_nvext_agent_context_session_only"),
    ("without one", "1.6", "1.6.1/rejected_nvext_agent_context"),
    ("x-session-id", "1.2", "1.2.1/agg_hdr_opencode_session"),
    ("x-session-id", "1.3", "1.3.1/agg_hdr_opencode_session"),
    ("conversation", "1.1", "1.1.1/agg_responses_conversation"),
    ("conversation", "1.2", "1.2.1/agg_responses_conversation"),
    ("conversation", "1.3", "1.3.1/agg_responses_conversation"),
    ("conversation", "1.6", "1.6.1/agg_responses_conversation"),
    ("prompt_cache_key", "1.1", "1.1.1/rejected_body_prompt_cache_key"),
    ("prompt_cache_key", "1.2", "1.2.1/rejected_body_prompt_cache_key"),
    ("prompt_cache_key", "1.3", "1.3.1/agg_responses_prompt_cache_key"),
    ("prompt_cache_key", "1.6", "1.6.1/agg_body_prompt_cache_key"),
    ("conversation_id", "1.1", "1.1.1/rejected_body_conversation_id"),
    ("conversation_id", "1.2", "1.2.1/rejected_body_conversation_id"),
    ("conversation_id", "1.3", "1.3.1/rejected_body_conversation_id"),
    ("conversation_id", "1.6", "1.6.1/rejected_body_conversation_id"),
]


def read_cells() -> dict[tuple[str, str], str]:
    """What the table says, by the first column and the release."""
    section = PAGE.split("## Which carriers can reach a worker")[1].split("\n## ")[0]
    cells = {}
    for line in section.splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        if line.startswith("| ") and len(columns) == 1 + len(RELEASES):
            for release, cell in zip(RELEASES, columns[1:], strict=True):
                cells[columns[0], release] = cell
    return cells


def find_carrier(capture: dict[str, object]) -> str:
    """The place where an identity stands in what the worker was handed; `-` for nowhere."""
    if capture["worker_request"] is None:
        response = capture["http_response"]
        assert isinstance(response, dict)
        assert response["status"] == 400
        return "refused"
    request, context = capture["worker_request"], capture["worker_context"]
    assert isinstance(request, dict)
    assert isinstance(context, dict)
    if (request.get("routing") or {}).get("session_control"):
        return "`session_control`"
    if request.get("agent_context"):
        return "`agent_context`"
    if "conversation-id" in (context.get("metadata") or {}):
        return "`metadata`"
    if any(entry.startswith("conversation_id:") for entry in request.get("annotations") or ()):
        return "`annotation`"
    return "-"


@pytest.mark.parametrize(
    ("sent", "release", "capture", "folder"),
    [
        *((*cell, "captures") for cell in CELLS),
        *((*cell, "reachability") for cell in FURTHER_CELLS),
    ],
)
def test_the_table_says_what_the_captures_show(sent: str, release: str, capture: str, folder: str) -> None:
    """Whether and where a carrier arrives was seen at a real frontend and worker."""
    row = [
        cell
        for (name, column), cell in read_cells().items()
        if column == release and re.search(rf"`{re.escape(sent)}`|\b{re.escape(sent)}$", name)
    ]
    assert row == [find_carrier(load_capture(capture, folder))]


def test_every_capture_of_reachability_is_held_against_the_table() -> None:
    """No capture lies there unused."""
    folder = DATA / "reachability"
    kept = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.json")}
    assert kept == {capture for _, _, capture in FURTHER_CELLS}


def test_codex_arrives_as_a_tree_on_1_3_and_as_a_thread_on_1_6() -> None:
    """The same request names another conversation on each."""
    seen = {
        release: load_capture(f"{release}/agg_responses_codex_headers")["worker_request"]["agent_context"]
        for release in ("1.3.1", "1.6.1")
    }
    sent = dict(load_capture("1.3.1/agg_responses_codex_headers")["http_request"]["headers"])
    assert seen["1.3.1"]["session_id"] == sent["session-id"]
    assert seen["1.6.1"]["session_id"] == sent["thread-id"]
    cells = read_cells()
    assert cells["Codex `session-id`", "1.3"] == "`agent_context`: the tree, see below"
    assert (cells["Codex `thread-id`", "1.3"], cells["Codex `thread-id`", "1.6"]) == ("-", "`agent_context`")


def test_every_carrier_and_profile_is_on_the_page() -> None:
    """What can stand in an order can be looked up, and so can what never may."""
    if importlib.util.find_spec("pydantic") is None:
        pytest.skip("the sidecar's libraries are not installed")
    from sidecar.identity.catalogue import CARRIERS
    from sidecar.policy.identity_schema import IdentityPolicy

    listed = set(re.findall(r"`([^`]+)`", PAGE))
    assert set(CARRIERS) - listed == set()
    assert {"default", "trtllm-serve", "dynamo"} <= listed
    assert set(IdentityPolicy.model_fields) - {"order", "profile"} <= {
        word.partition(":")[0] for word in listed
    }
