"""The captured requests are complete, each has its expectation, and each expectation is possible."""

import re
from typing import Any

import pytest

from examples.fake_engine import FakeLLM
from tests.support.captures import (
    asked_phase,
    build_disaggregated_params,
    list_captures,
    load_capture,
    load_rows,
    release_of,
)

ROWS = load_rows()
RULES = {"gate", "engine", "router", "sidecar-first-rank", "no-id", "kv-aware", "place", "else"}
DIALECTS = {"rank_only", "disaggregated_params", "conversation_params"}
ROUTERS = {"unknown", "default", "kv_cache_aware", "conversation"}
RANK_SHAPES = {
    (False, False): "no rank",
    (True, False): "rank",
    (False, True): "prefill rank",
    (True, True): "both ranks",
}

# Per release: identity carriers with their keys | worker role | the ranks in `routing`.
CLASSES = {
    "1.1.1": """
annotations | agg | no rank
none | agg | no rank
none | agg | rank
none | agg | both ranks
none | agg | no routing
none | decode | rank
none | decode | both ranks
none | prefill | rank
none | prefill | both ranks
session_control(action,session_id,timeout) | agg | no rank
session_control(action,session_id,timeout) | agg | rank
session_control(action,session_id,timeout) | decode | no rank
session_control(action,session_id,timeout) | decode | rank
session_control(action,session_id,timeout) | prefill | no rank
session_control(action,session_id,timeout) | prefill | rank
session_control(session_id,timeout) | agg | no rank
session_control(session_id,timeout) | agg | rank
session_control(session_id,timeout) | decode | no rank
session_control(session_id,timeout) | decode | rank
session_control(session_id,timeout) | prefill | no rank
session_control(session_id,timeout) | prefill | rank
""",
    "1.2.1": """
agent_context(parent_trajectory_id,session_id,session_type_id,trajectory_id) | agg | no rank
agent_context(parent_trajectory_id,session_id,session_type_id,trajectory_id) | agg | rank
agent_context(parent_trajectory_id,session_id,session_type_id,trajectory_id) | decode | rank
agent_context(parent_trajectory_id,session_id,session_type_id,trajectory_id) | prefill | rank
agent_context(session_id,session_type_id,trajectory_id) | agg | no rank
agent_context(session_id,session_type_id,trajectory_id) | agg | rank
agent_context(session_id,session_type_id,trajectory_id) | decode | rank
agent_context(session_id,session_type_id,trajectory_id) | prefill | rank
agent_context(session_id,session_type_id,trajectory_id)+session_control(session_id,timeout) | agg | no rank
agent_context(session_id,session_type_id,trajectory_id)+session_control(session_id,timeout) | agg | rank
agent_context(session_id,session_type_id,trajectory_id)+session_control(session_id,timeout) | decode | rank
agent_context(session_id,session_type_id,trajectory_id)+session_control(session_id,timeout) | prefill | rank
annotations | agg | no rank
none | agg | no rank
none | agg | rank
none | agg | both ranks
none | agg | no routing
none | decode | rank
none | decode | both ranks
none | prefill | rank
none | prefill | both ranks
session_control(action,session_id,timeout) | agg | no rank
session_control(action,session_id,timeout) | agg | rank
session_control(action,session_id,timeout) | decode | rank
session_control(action,session_id,timeout) | prefill | rank
session_control(session_id,timeout) | agg | no rank
session_control(session_id,timeout) | agg | rank
session_control(session_id,timeout) | decode | rank
session_control(session_id,timeout) | prefill | rank
""",
    "1.3.1": """
agent_context(kv_hints,session_final,session_id) | agg | rank
agent_context(kv_hints,session_final,session_id) | agg | no routing
agent_context(kv_hints,session_final,session_id) | decode | rank
agent_context(kv_hints,session_final,session_id) | prefill | both ranks
agent_context(parent_session_id,session_id) | agg | rank
agent_context(parent_session_id,session_id) | agg | no routing
agent_context(parent_session_id,session_id) | decode | rank
agent_context(parent_session_id,session_id) | prefill | both ranks
agent_context(session_id) | agg | no rank
agent_context(session_id) | agg | rank
agent_context(session_id) | agg | both ranks
agent_context(session_id) | agg | no routing
agent_context(session_id) | decode | rank
agent_context(session_id) | decode | both ranks
agent_context(session_id) | prefill | both ranks
agent_context(session_id)+metadata | agg | no routing
annotations | agg | no rank
metadata | agg | rank
metadata | agg | no routing
metadata | decode | rank
metadata | prefill | both ranks
none | agg | no rank
none | agg | rank
none | agg | both ranks
none | agg | no routing
none | decode | rank
none | decode | both ranks
none | prefill | both ranks
cache_salt | agg | no rank
cache_salt | agg | no routing
""",
    "1.6.1": """
agent_context(agent_headers,input_trigger,parent_session_id,session_id) | agg | no rank
agent_context(agent_headers,input_trigger,session_id) | agg | no rank
agent_context(agent_headers,input_trigger,session_id) | agg | rank
agent_context(agent_headers,input_trigger,session_id) | decode | rank
agent_context(agent_headers,input_trigger,session_id) | prefill | both ranks
agent_context(agent_headers,input_trigger,session_id) | trtllm_agg | rank
agent_context(agent_headers,input_trigger,session_id) | trtllm_decode | rank
agent_context(agent_headers,input_trigger,session_id) | trtllm_prefill | both ranks
agent_context(agent_headers,input_trigger,session_id) | unified_decode | rank
agent_context(agent_headers,input_trigger,session_id) | unified_prefill | both ranks
agent_context(input_trigger,parent_session_id,session_id) | agg | no rank
agent_context(input_trigger,parent_session_id,session_id) | agg | rank
agent_context(input_trigger,parent_session_id,session_id) | decode | rank
agent_context(input_trigger,parent_session_id,session_id) | prefill | both ranks
agent_context(input_trigger,session_final,session_id) | agg | no rank
agent_context(input_trigger,session_final,session_id) | agg | rank
agent_context(input_trigger,session_final,session_id) | decode | rank
agent_context(input_trigger,session_final,session_id) | prefill | both ranks
agent_context(input_trigger,session_id) | agg | no rank
agent_context(input_trigger,session_id) | agg | rank
agent_context(input_trigger,session_id) | decode | rank
agent_context(input_trigger,session_id) | prefill | both ranks
agent_context(input_trigger,session_id) | trtllm_agg | rank
agent_context(input_trigger,session_id) | trtllm_decode | rank
agent_context(input_trigger,session_id) | trtllm_prefill | both ranks
agent_context(input_trigger,session_id) | unified_decode | rank
agent_context(input_trigger,session_id) | unified_prefill | both ranks
agent_context(input_trigger,session_id)+metadata | agg | no rank
annotations | agg | no rank
metadata | agg | no rank
metadata | agg | rank
metadata | decode | rank
metadata | prefill | both ranks
metadata | trtllm_agg | rank
metadata | trtllm_decode | rank
metadata | trtllm_prefill | both ranks
metadata | unified_decode | rank
none | agg | no rank
none | agg | rank
none | agg | both ranks
none | decode | rank
none | decode | both ranks
none | prefill | both ranks
none | trtllm_decode | rank
none | trtllm_prefill | both ranks
none | unified_decode | rank
none | unified_prefill | both ranks
cache_salt | agg | no rank
""",
}


def classify(name: str) -> str:
    """Name the class of a capture as `CLASSES` does, without its release."""
    capture = load_capture(name)
    request = capture["worker_request"]
    routing = request.get("routing")
    known = routing or {}
    salt = ((request.get("extra_args") or {}).get("nvext") or {}).get("cache_salt") or known.get("cache_salt")
    carriers = [
        f"{carrier}({','.join(sorted(value))})"
        for carrier, value in (
            ("agent_context", request.get("agent_context")),
            ("session_control", known.get("session_control")),
        )
        if value is not None
    ]
    carriers += ["metadata"] if (capture["worker_context"] or {}).get("metadata") else []
    carriers += ["annotations"] if request.get("annotations") else []
    carriers += ["cache_salt"] if salt else []
    ranks = RANK_SHAPES["dp_rank" in known, "prefill_dp_rank" in known]
    rank_shape = "no routing" if routing is None else ranks
    return f"{'+'.join(carriers) or 'none'} | {capture['worker_role']} | {rank_shape}"


def test_rows_and_captures_match() -> None:
    """Every capture has a row and every row a capture."""
    assert {row["capture"] for row in ROWS} == list_captures()


def test_rows_differ() -> None:
    """No two rows ask the same question."""
    questions = [
        repr([row["capture"], row["engine"], row.get("call"), row.get("policy"), row.get("affinity")])
        for row in ROWS
    ]
    assert len(set(questions)) == len(questions)


def test_every_class_is_covered() -> None:
    """Every (release, identity shape, phase, rank shape) that was seen has at least one capture."""
    seen: dict[str, set[str]] = {release: set() for release in CLASSES}
    for name in list_captures():
        seen[name.split("/")[0]].add(classify(name))
    assert seen == {release: set(table.strip().splitlines()) for release, table in CLASSES.items()}
    assert sum(map(len, seen.values())) == 128


def test_every_rule_dialect_and_router_is_exercised() -> None:
    """Every row of the directive table and every way to tell an engine occurs on several rows."""
    for field, expected in (
        ([row["rule"] for row in ROWS], RULES),
        ([row["engine"]["dialect"] for row in ROWS], DIALECTS),
        ([row["engine"]["adp_router"] for row in ROWS], ROUTERS),
    ):
        assert set(field) == expected
        assert min(field.count(value) for value in expected) >= 3


def test_both_legs_of_a_request_expect_one_id() -> None:
    """Rows about the two phases of one request, sent the same way, attach one id or none."""
    ids: dict[str, set[str]] = {}
    for row in ROWS:
        conversation_id = row["expect"]["conversation_id"]
        if conversation_id is not None and not {"call", "policy"} & row.keys():
            request = re.sub(r"/(trtllm_|unified_)?(prefill|decode)_", "/", row["capture"])
            ids.setdefault(request, set()).add(conversation_id)
    assert not {request: found for request, found in ids.items() if len(found) > 1}


@pytest.mark.parametrize("row", [r for r in ROWS if "/trtllm_" in r["capture"]], ids=lambda r: r["capture"])
def test_expectation_equals_dynamo_unless_marked(row: dict[str, Any]) -> None:
    """The expected parameters are those that Dynamo's own handlers passed, or the row says they differ."""
    call = load_capture(row["capture"])["trtllm_engine_call"]
    conversation = call.get("conversation_params")
    scheduling = call.get("scheduling_params")
    dynamo = (
        conversation["conversation_id"] if conversation else None,
        {k: v for k, v in scheduling.items() if k != "__class__"} if scheduling else None,
    )
    kwargs = row["expect"]["engine_kwargs"]
    ours = (kwargs.get("conversation_params"), kwargs["scheduling_params"])
    assert (ours != dynamo) == row.get("differs_from_dynamo", False)


async def test_expected_parameters_are_accepted_by_the_engine() -> None:
    """Every expectation can be built from the release's own classes, and the engine survives it."""
    for row in ROWS:
        engine, kwargs = row["engine"], row["expect"]["engine_kwargs"]
        capture, release = load_capture(row["capture"]), release_of(engine)
        router = engine["adp_router"]
        is_possible = router != "conversation" or release.has_conversation_router
        llm = FakeLLM(
            release, engine["dp_size"], router=router if is_possible and router != "unknown" else "default"
        )
        sent: dict[str, Any] = {"disaggregated_params": build_disaggregated_params(capture, release)}
        if kwargs.get("disaggregated_params"):
            sent["disaggregated_params"].conversation_id = kwargs["disaggregated_params"]["conversation_id"]
        if kwargs["scheduling_params"]:
            sent["scheduling_params"] = release.scheduling_params(**kwargs["scheduling_params"])
        if kwargs.get("conversation_params"):
            assert release.conversation_params is not None
            sent["conversation_params"] = release.conversation_params(
                conversation_id=kwargs["conversation_params"]
            )
        token_ids = list(capture["worker_request"]["token_ids"])
        outputs = [output async for output in llm.generate_async(token_ids, **sent)]
        assert outputs[-1].finished
        assert llm.calls[0].conversation_id == row["expect"]["conversation_id"]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["capture"])
def test_row_is_consistent(row: dict[str, Any]) -> None:
    """What a row expects fits together: parameters, directive, rank, phase and dialect."""
    engine, expect = row["engine"], row["expect"]
    kwargs, dialect = expect["engine_kwargs"], engine["dialect"]
    attached = {
        "rank_only": None,
        "conversation_params": kwargs.get("conversation_params"),
        "disaggregated_params": (kwargs.get("disaggregated_params") or {}).get("conversation_id"),
    }[dialect]
    assert attached == expect["conversation_id"]
    prefills_for_itself = "prefill_result" in row.get("without", ())
    asked = asked_phase(load_capture(row["capture"]))
    assert expect["phase"] == ("aggregated" if prefills_for_itself else asked)
    scheduling = kwargs["scheduling_params"] or {}
    rank = scheduling.get("attention_dp_rank")
    assert rank is None or 0 <= rank < engine["dp_size"]
    is_placed = expect.get("applied_directive", expect["directive"]) == "place"
    assert not scheduling or scheduling["attention_dp_relax"] is (rank is None or is_placed)
    if expect.get("applied_directive", expect["directive"]) == "withhold":
        assert rank is None
