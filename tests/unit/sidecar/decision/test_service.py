"""A decision with all of its effects: what it counts, records, places and suspends."""

from __future__ import annotations

from typing import Any

import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import PlacementState, RankDirective
from sidecar.identity.single_use_guard import COHORT_S
from sidecar.model import RuleTrace
from sidecar.telemetry import metrics
from tests.support.decisions import DecisionHarness
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    CONVERSATION_HASH,
    PINNING_ENGINE,
    make_request,
)
from tests.support.policies import compile_yaml

_ENFORCE = "operational: {single_use_guard: enforce}"
_HEADER = "x-smg-routing-key"
_CARRIER = f"header:{_HEADER}"


def _stamped(session_id: str, request_id: str = "", **fields: Any) -> service_pb2.EnrichRequest:
    """A request of an engine that pins, whose conversation a gateway's header names."""
    identity = types_pb2.Identity(headers={_HEADER: session_id})
    defaults = {"request_id": request_id, "identity": identity, "engine": PINNING_ENGINE}
    return make_request(**{**defaults, **fields})


def _make_ids_single_use(harness: DecisionHarness) -> None:
    """Sends a new id with each of 300 requests, until the first hundred had their time to repeat."""
    for cohort in range(3):
        for number in range(100):
            name = f"stamped-{cohort}-{number}"
            harness.decide(_stamped(name, request_id=name))
        harness.now_s += COHORT_S


def test_single_use_ids_are_reported_and_still_attached_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    harness = DecisionHarness()
    _make_ids_single_use(harness)
    decision = harness.decide(_stamped(CONVERSATION)).decision
    assert decision.conversation_id == CONVERSATION
    assert "single-use-carrier" not in decision.notices
    assert harness.read_counts(metrics.SINGLE_USE_REPORTS) == {_CARRIER: 1}
    assert harness.read_counts(metrics.IDENTITIES) == {_CARRIER: 301}
    assert harness.read_counts(metrics.DISTINCT_IDS) == {_CARRIER: 301}
    assert harness.read_gauge(metrics.SINGLE_USE_RATIO) == {_CARRIER: 1.0}
    written = "".join(capfd.readouterr())
    assert written.count("single_use_ids") == 1
    assert _CARRIER in written
    assert "stamped-" not in written


def test_enforced_guard_attaches_no_id_of_a_suspended_carrier_until_its_ids_repeat() -> None:
    """The conversation is still named by its hash, and the rank of the router is kept."""
    harness = DecisionHarness(_ENFORCE)
    _make_ids_single_use(harness)
    decision = harness.decide(_stamped(CONVERSATION)).decision
    assert (decision.conversation_id, decision.affinity_key, decision.dp_rank) == (None, None, None)
    assert decision.directive is RankDirective.FORWARD
    assert decision.notices[0] == "single-use-carrier"
    assert (decision.source_detail, decision.conversation_hash) == (_CARRIER, CONVERSATION_HASH)
    for cohort in range(3):
        for turn in range(2):
            for number in range(100):
                name = f"conversation-{cohort}-{number}"
                harness.decide(_stamped(name, request_id=f"{name}-{turn}"))
        harness.now_s += COHORT_S
    assert harness.decide(_stamped(CONVERSATION)).decision.conversation_id == CONVERSATION


def test_ids_of_other_carriers_are_attached_while_one_is_suspended() -> None:
    harness = DecisionHarness(_ENFORCE)
    _make_ids_single_use(harness)
    request = _stamped("stamped")
    request.identity.headers["x-session-id"] = CONVERSATION
    assert harness.decide(request).decision.conversation_id == CONVERSATION


def test_explain_shows_a_suspended_carrier_and_decides_as_enrich_would() -> None:
    harness = DecisionHarness(_ENFORCE)
    before = harness.explain(_stamped(CONVERSATION))
    _make_ids_single_use(harness)
    after = harness.explain(_stamped(CONVERSATION))
    assert [explanation.rules[0] for explanation in (before, after)] == [
        RuleTrace("single-use-carrier", False),
        RuleTrace("single-use-carrier", True),
    ]
    assert (before.decision.conversation_id, after.decision.conversation_id) == (CONVERSATION, None)


@pytest.mark.parametrize("kind", [types_pb2.REQUEST_KIND_HEALTH_CHECK, types_pb2.REQUEST_KIND_WARMUP])
def test_health_check_and_warmup_count_no_identity_and_end_no_conversation(kind: int) -> None:
    """One every few seconds is not a conversation."""
    harness = DecisionHarness()
    request = _stamped("probe", kind=kind)
    request.identity.headers["x-dynamo-session-final"] = "true"
    harness.decide(request)
    for metric in (metrics.IDENTITIES, metrics.DISTINCT_IDS, metrics.FINAL_REQUESTS):
        assert harness.read_counts(metric) == {}
    assert harness.read_total(metrics.DECISIONS) == 1


def test_decision_is_counted_by_what_it_is_made_of() -> None:
    harness = DecisionHarness()
    harness.decide(make_request(engine=PINNING_ENGINE))
    harness.decide(make_request(engine=BALANCING_ENGINE))
    harness.decide(make_request(identity=None, engine=PINNING_ENGINE, phase=types_pb2.PHASE_DECODE))
    harness.policy = compile_yaml("operational: {mode: shadow}")
    harness.decide(make_request(engine=PINNING_ENGINE))
    assert harness.read_counts(metrics.DECISIONS) == {
        "prefill/header/none/withhold/on": 1,
        "prefill/header/new/place/on": 1,
        "decode/none/none/forward/on": 1,
        "prefill/header/none/forward/shadow": 1,
    }
    assert harness.read_counts(metrics.NOTICES) == {
        "no-conversation-id": 1,
        "mode-shadow": 1,
        "would-withhold": 1,
        "would-attach-id": 1,
    }


def test_conversation_is_placed_anew_with_each_request() -> None:
    """What is remembered of a decision says that the sidecar places; the rank is of this request."""
    harness = DecisionHarness()
    decided = [harness.decide(make_request(engine=BALANCING_ENGINE)) for _ in range(2)]
    assert [one.decision.placement for one in decided] == [PlacementState.NEW, PlacementState.RETAINED]
    ranks = {one.decision.dp_rank for one in decided}
    assert len(ranks) == 1
    assert None not in ranks


def test_only_a_decision_without_placement_is_remembered_as_it_is_sent() -> None:
    harness = DecisionHarness()
    placed = harness.decide(make_request(engine=BALANCING_ENGINE))
    pinned = harness.decide(make_request(engine=PINNING_ENGINE))
    assert placed.serialized == b""
    sent = service_pb2.EnrichResponse.FromString(pinned.serialized)
    assert (sent.hints.conversation_id, sent.decision_id) == (CONVERSATION, "")


def test_request_of_a_stream_is_outstanding_until_it_finishes() -> None:
    harness = DecisionHarness()
    decided = harness.decide_on_stream(make_request(engine=BALANCING_ENGINE, prompt_tokens=1_000))
    assert harness.read_outstanding() == 1_000
    harness.finish(decided)
    assert harness.read_outstanding() == 0


def test_unary_request_is_never_outstanding() -> None:
    """No finish report will follow."""
    harness = DecisionHarness()
    harness.decide(make_request(engine=BALANCING_ENGINE, prompt_tokens=1_000))
    assert harness.read_outstanding() == 0


def test_finish_report_is_recorded_with_its_decision_and_counted() -> None:
    harness = DecisionHarness()
    decided = harness.decide_on_stream(make_request(engine=PINNING_ENGINE))
    harness.finish(decided, cached_tokens=7)
    record = harness.service.recorder.find_by_id(decided.decision_id)
    assert record is not None
    assert record.finish is not None
    assert record.finish.cached_tokens == 7
    assert harness.read_counts(metrics.FINISHES) == {"completed/withhold/true": 1}
    assert harness.read_gauge(metrics.AFFINITY_ACTIVE) == {"prefill": 1.0}


def test_explain_changes_nothing() -> None:
    harness = DecisionHarness()
    explanation = harness.explain(make_request(engine=BALANCING_ENGINE, request_id="r"))
    assert explanation.decision.placement is PlacementState.NEW
    assert explanation.decision.dp_rank is not None
    assert harness.service.recorder.find_by_request("r") is None
    assert harness.service.placement.find(ConversationHash(CONVERSATION_HASH)) == []
    for metric in (metrics.DECISIONS, metrics.IDENTITIES, metrics.PLACEMENTS):
        assert harness.read_counts(metric) == {}
    decided = harness.decide(make_request(engine=BALANCING_ENGINE))
    assert decided.decision == explanation.decision


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        # The sidecar keeps the conversation on its rank and sends that.
        ("operational: {placement: {when: always}}", {"sidecar": 1}),
        # The router's rank is sent, though the table has the conversation elsewhere.
        ("", {"router": 1}),
    ],
)
def test_rank_of_the_router_that_differs_from_the_sidecars_is_counted_by_whose_was_kept(
    policy: str, counts: dict[str, int]
) -> None:
    harness = DecisionHarness(policy)
    placed = harness.decide(make_request(engine=BALANCING_ENGINE)).decision.dp_rank
    assert placed is not None
    for router_rank in (placed, (placed + 1) % 4):
        hints = types_pb2.RoutingHints(dp_rank=router_rank)
        harness.decide(make_request(engine=BALANCING_ENGINE, hints=hints))
    assert harness.read_counts(metrics.ROUTER_RANK_DISAGREEMENT) == counts


def test_paused_placement_forwards_and_is_reported_once() -> None:
    harness = DecisionHarness()
    for number in range(11):
        decided = harness.decide_on_stream(make_request(f"c-{number}", engine=BALANCING_ENGINE))
        rank = decided.decision.dp_rank
        assert rank is not None
        harness.finish(decided, observed_dp_rank=(rank + 1) % 4)
    decision = harness.decide(make_request(engine=BALANCING_ENGINE)).decision
    assert (decision.directive, decision.dp_rank) == (RankDirective.FORWARD, None)
    assert decision.notices[0] == "placement-not-honored"
    assert [phase.name for phase in harness.pauses] == ["PREFILL"]


@pytest.mark.parametrize("engine", [PINNING_ENGINE, BALANCING_ENGINE])
def test_decision_is_recorded_with_what_its_request_has_of_its_own(engine: types_pb2.EngineProfile) -> None:
    """Only the decision is taken from an earlier request about the same subject."""
    harness = DecisionHarness()
    harness.decide(
        make_request(engine=engine, request_id="r-1", worker_id="w-1", prompt_tokens=1, model="m-1")
    )
    fields: dict[str, Any] = {"request_id": "r-2", "worker_id": "w-2", "model": "m-2", "prompt_tokens": 2}
    again = make_request(engine=engine, traceparent="00-2", known_rank=2, **fields)
    again.engine.instance_id, again.engine.max_active_requests = "start-2", 64
    harness.decide(again)
    record = harness.service.recorder.find_by_request("r-2")
    assert record is not None
    request = record.request
    assert {name: getattr(request, name) for name in fields} == fields
    assert (request.traceparent, request.known_rank, request.router_rank) == ("00-2", 2, None)
    assert (request.engine.instance_id, request.engine.max_active_requests) == ("start-2", 64)


def test_recorded_decision_keeps_nothing_long_of_its_request() -> None:
    """Thousands of decisions are kept, and a tenant or a carrier can take 16 KiB."""
    harness = DecisionHarness()
    request = make_request(engine=PINNING_ENGINE, request_id="r", tenant="t" * 16_000)
    request.identity.headers["x-other"] = "v" * 16_000
    harness.decide(request)
    record = harness.service.recorder.find_by_request("r")
    assert record is not None
    assert len(repr(record)) < 1_500
