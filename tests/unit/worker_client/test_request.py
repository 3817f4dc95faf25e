"""Reading requests: every shape that a worker is handed, and every way to be malformed."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support import strategies
from worker_client import Phase, RequestKind
from worker_client._request import AgentContext, RequestFacts, SessionControl, read_request


def read(request: object, context: object = None, **options: Any) -> RequestFacts:
    return read_request(request, context, **{"phase": Phase.PREFILL, **options})


def test_a_request_of_dynamo_1_6_is_read() -> None:
    """Agent context, headers, router's choice, trace and tenant."""
    context = SimpleNamespace(
        id=lambda: "request-1", metadata={"k": "v"}, trace_headers=lambda: {"traceparent": "00-a-b-01"}
    )
    facts = read(
        {
            "model": "m",
            "token_ids": [1, 2, 3],
            "routing": {"dp_rank": 2, "prefill_dp_rank": 1, "cache_salt": "second"},
            "agent_context": {
                "session_id": "s",
                "parent_session_id": "p",
                "session_final": False,
                "agent_headers": {"X-Claude-Code-Session-Id": ["first", "second"]},
            },
            "annotations": ["a", "b"],
            "extra_args": {"nvext": {"cache_salt": "tenant"}},
        },
        context,
    )
    assert facts.request_id == "request-1"
    assert (facts.model, facts.tenant, facts.prompt_tokens) == ("m", "tenant", 3)
    assert (facts.router_rank, facts.prefill_rank) == (2, None)
    assert facts.agent_context == AgentContext("s", "p", False, "", "")
    assert facts.headers == {"x-claude-code-session-id": "first"}
    assert (facts.traceparent, facts.metadata, facts.annotations) == ("00-a-b-01", {"k": "v"}, ("a", "b"))
    assert facts.notices == []


def test_session_control_of_dynamo_1_1_is_read() -> None:
    """It is in `routing`, and the context of that release has no metadata."""
    request = {"routing": {"session_control": {"session_id": "s", "action": "open", "timeout": 300}}}
    facts = read(request, SimpleNamespace(id=lambda: "request-1"))
    assert facts.session_control == SessionControl("s", "open", 300)
    assert facts.agent_context is None


@pytest.mark.parametrize(
    ("given", "prefill_result", "phase"),
    [
        (Phase.PREFILL, None, Phase.PREFILL),
        (Phase.DECODE, {"disaggregated_params": {}}, Phase.DECODE),
        (Phase.DECODE, None, Phase.AGGREGATED),
        (Phase.DECODE, {}, Phase.AGGREGATED),
        (Phase.AGGREGATED, None, Phase.AGGREGATED),
        (2, {"disaggregated_params": {}}, Phase.DECODE),
        ("decode", {"disaggregated_params": {}}, Phase.UNSPECIFIED),
        (None, None, Phase.UNSPECIFIED),
        (9, None, Phase.UNSPECIFIED),
    ],
)
def test_decode_without_a_prefill_result_is_aggregated(
    given: object, prefill_result: object, phase: Phase
) -> None:
    """A decode worker that prefills for itself keeps both kinds of state."""
    assert read({"prefill_result": prefill_result}, phase=given).phase is phase


def test_decode_takes_rank_and_cached_tokens_from_the_prefill_result() -> None:
    """`prefill_dp_rank` is stale in many requests and never read."""
    facts = read(
        {
            "routing": {"dp_rank": 3, "prefill_dp_rank": 0, "prefill_worker_id": 77},
            "prefill_result": {
                "disaggregated_params": {"ctx_dp_rank": 1},
                "prompt_tokens_details": {"cached_tokens": 64},
            },
        },
        phase=Phase.DECODE,
    )
    assert (facts.prefill_rank, facts.prefill_instance, facts.prefill_cached_tokens) == (1, "77", 64)


@pytest.mark.parametrize(
    ("request_", "kind", "read_as"),
    [
        ({}, None, RequestKind.NORMAL),
        ({"_HEALTH_CHECK": True}, None, RequestKind.HEALTH_CHECK),
        ({"_HEALTH_CHECK": True}, RequestKind.NORMAL, RequestKind.HEALTH_CHECK),
        ({"_HEALTH_CHECK": "yes"}, None, RequestKind.NORMAL),
        ({}, RequestKind.WARMUP, RequestKind.WARMUP),
        ({}, RequestKind.UNSPECIFIED, RequestKind.NORMAL),
        ({}, "warmup", RequestKind.NORMAL),
    ],
)
def test_the_kind_is_read_from_the_request_or_given(
    request_: dict[str, Any], kind: object, read_as: RequestKind
) -> None:
    """Only Dynamo's own mark makes a health check."""
    assert read(request_, kind=kind).kind is read_as


@pytest.mark.parametrize(
    ("request_", "headers", "tenant", "expected"),
    [
        (
            {"extra_args": {"nvext": {"cache_salt": "a"}}, "routing": {"cache_salt": "b"}},
            {},
            "given",
            "given",
        ),
        ({"extra_args": {"nvext": {"cache_salt": "a"}}, "routing": {"cache_salt": "b"}}, {}, None, "a"),
        ({"routing": {"cache_salt": "b"}}, {"X-Tenant-Id": "c"}, None, "b"),
        ({}, {"X-Tenant-Id": "c"}, "", "c"),
        ({"extra_args": {"nvext": None}}, {}, None, ""),
    ],
)
def test_the_tenant_is_the_callers_else_a_cache_salt_else_the_header(
    request_: dict[str, Any], headers: dict[str, str], tenant: str | None, expected: str
) -> None:
    assert read(request_, headers=headers, tenant=tenant).tenant == expected


@pytest.mark.parametrize(
    ("given", "read_as", "notices"),
    [
        (" a ", " a ", []),
        (4711, "4711", []),
        (1.5, "1.5", []),
        (True, "True", []),
        (None, "", []),
        (["a"], "", ["value-not-text-dropped"]),
        (10**4300, "", ["value-not-text-dropped"]),
    ],
    ids=lambda value: repr(value) if not isinstance(value, int) or value < 10**9 else "huge",
)
def test_a_number_names_a_conversation_as_its_text(given: object, read_as: str, notices: list[str]) -> None:
    """TensorRT-LLM's own edge spells what `conversation_params` holds; both must name it alike."""
    facts = read({}, body={"conversation_params": {"conversation_id": given}})
    assert (facts.conversation_id, facts.notices) == (read_as, notices)


@pytest.mark.parametrize("rank", [True, "1", -1, 65_536, 2**40, 1.0, [1]], ids=repr)
def test_a_value_that_can_not_be_a_rank_is_dropped_with_a_notice(rank: object) -> None:
    facts = read({"routing": {"dp_rank": rank}})
    assert (facts.router_rank, facts.notices) == (None, ["router-rank-out-of-range"])


@pytest.mark.parametrize(
    "token_ids", [b"\1\0\0\0\2\0\0\0", bytearray(8), memoryview(bytes(8)), [1, 2], (1, 2)]
)
def test_token_ids_are_counted_also_where_they_are_packed(token_ids: object) -> None:
    """`DYN_TOKEN_IDS_AS_BYTES` packs four bytes each."""
    assert read({"token_ids": token_ids}).prompt_tokens == 2


@pytest.mark.parametrize("value", [b"caf\xff", "lone \ud800"], ids=ascii)
def test_a_value_that_is_not_utf8_is_dropped_with_a_notice(value: object) -> None:
    """The wire carries UTF-8 only, and one bad value would end everybody's stream."""
    facts = read({"agent_context": {"session_id": value}})
    assert (facts.agent_context, facts.notices) == (AgentContext(), ["value-not-utf8-dropped"])


def test_a_value_of_more_than_16_kib_is_dropped_with_a_notice() -> None:
    """The limit counts bytes of UTF-8."""
    fits, too_long = "é" * 8_192, "é" * 8_192 + "x"
    facts = read({}, headers={"a": fits, "b": too_long, "c": "x" * 20_480})
    assert facts.headers == {"a": fits, "b": "", "c": ""}
    assert facts.notices == ["value-too-long-dropped"]


def test_headers_beyond_256_are_dropped_with_a_notice() -> None:
    facts = read({}, headers={f"h{number}": "v" for number in range(10_000)})
    assert len(facts.headers) == 256
    assert facts.notices == ["headers-over-limit-dropped"]


def test_headers_may_be_pairs_and_the_first_of_a_name_counts() -> None:
    """As ASGI servers give them: bytes, repeated, in any case."""
    headers = [(b"X-Session-Id", b"one"), ("x-session-id", "two"), ("odd",), 3]
    assert read({}, headers=headers).headers == {"x-session-id": "one"}


def test_the_callers_headers_win_over_agent_headers() -> None:
    """What the worker received itself is nearer than a copy."""
    request = {"agent_context": {"agent_headers": {"a": ["copy"], "b": ["copy"]}}}
    assert read(request, headers={"A": "own"}).headers == {"a": "own", "b": "copy"}


@pytest.mark.parametrize("request_", [None, 3, "text", [], object(), {"routing": None, "agent_context": "s"}])
def test_a_value_that_is_not_a_request_has_no_facts(request_: object) -> None:
    facts = read(request_)
    assert (facts.agent_context, facts.router_rank, facts.notices) == (None, None, [])


def test_the_request_is_never_changed() -> None:
    request = {
        "routing": {"dp_rank": 9**9},
        "agent_context": {"agent_headers": {"A": ["b"]}, "session_id": 4},
    }
    before = copy.deepcopy(request)
    read(request, headers={"X": b"\xff"})
    assert request == before


def assert_the_wire_can_carry(facts: RequestFacts) -> None:
    texts = [facts.request_id, facts.model, facts.tenant, facts.traceparent, facts.conversation_id]
    texts += [*facts.headers, *facts.headers.values(), *facts.annotations]
    assert all(len(text.encode()) <= 16_384 for text in texts)
    assert facts.router_rank is None or 0 <= facts.router_rank <= 65_535
    assert 0 <= facts.prompt_tokens < 2**32


# Generated objects are slow to build on a busy machine; what is read is fast.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PATIENT
@given(request=strategies.requests, context=strategies.contexts)
def test_reading_any_request_never_raises(request: object, context: object) -> None:
    assert_the_wire_can_carry(read(request, context, phase=Phase.DECODE))


@PATIENT
@given(
    phase=strategies.scalars,
    headers=strategies.json_like,
    body=strategies.requests,
    tenant=strategies.scalars,
    kind=strategies.scalars,
)
def test_reading_any_option_never_raises(
    phase: object, headers: object, body: object, tenant: object, kind: object
) -> None:
    options = {"phase": phase, "headers": headers, "body": body, "tenant": tenant, "kind": kind}
    assert_the_wire_can_carry(read({}, **options))
