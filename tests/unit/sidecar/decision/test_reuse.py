import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.v1 import types_pb2
from routing_hints.vocabulary import PlacementState, RankDirective
from sidecar.telemetry import metrics
from tests.support.decisions import WORKER_ID, DecisionHarness
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION_HASH,
    PINNING_ENGINE,
    RECORDING_ENGINE,
    make_request,
)

PLACED = make_request(engine=BALANCING_ENGINE, prompt_tokens=100)


def other_rank(rank: int | None) -> int:
    assert rank is not None
    return (rank + 1) % 4


def decide_new_conversations(harness: DecisionHarness, cohort: int) -> None:
    """Fills one cohort of the single-use guard."""
    harness.now_s = 301.0 * cohort
    for number in range(120):
        name = f"conversation-{cohort}-{number:04}"
        harness.decide(make_request(name, engine=PINNING_ENGINE, request_id=name))


@pytest.mark.parametrize("engine", [PINNING_ENGINE, BALANCING_ENGINE])
def test_decision_about_a_named_conversation_is_reusable(engine: types_pb2.EngineProfile) -> None:
    assert DecisionHarness().decide(make_request(engine=engine)).decision.reusable


def test_decision_without_an_identity_is_not_reusable() -> None:
    message = make_request(engine=PINNING_ENGINE, identity=None)
    assert not DecisionHarness().decide(message).decision.reusable


def test_placement_that_binds_no_conversation_is_not_reusable() -> None:
    decided = DecisionHarness().decide(make_request(engine=BALANCING_ENGINE, identity=None))
    assert (decided.decision.directive, decided.decision.reusable) == (RankDirective.PLACE, False)


def test_decision_by_the_requests_own_id_is_not_reusable() -> None:
    harness = DecisionHarness("operational: {rollout_percent: 50}")
    nameless = harness.decide(make_request(engine=PINNING_ENGINE, identity=None))
    assert not nameless.decision.reusable
    assert harness.decide(make_request(engine=PINNING_ENGINE)).decision.reusable


def test_first_turn_on_an_engine_that_records_its_rank_is_not_reusable_and_later_ones_are() -> None:
    harness = DecisionHarness()
    message = make_request(engine=RECORDING_ENGINE)
    first = harness.decide_on_stream(message)
    assert (first.decision.placement, first.decision.reusable) == (PlacementState.NEW, False)
    harness.finish(first)
    later = harness.decide_on_stream(make_request(engine=RECORDING_ENGINE, request_id="request-2"))
    assert (later.decision.directive, later.decision.reusable) == (RankDirective.WITHHOLD, True)


def test_applied_decision_that_still_holds_is_unchanged() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    again = harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-2"), first)
    assert again.unchanged
    assert harness.read_counts(metrics.REUSED_REQUESTS) == {"true": 1}


def test_decision_of_another_run_of_the_sidecar_is_never_unchanged() -> None:
    first = DecisionHarness().decide_on_stream(PLACED)
    assert not DecisionHarness().reuse(PLACED, first).unchanged


def test_decision_of_an_earlier_policy_is_never_unchanged() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.policy = DecisionHarness("operational: {logging: {level: debug}}").policy
    second = harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-2"), first)
    assert not second.unchanged
    third = harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-3"), second)
    assert third.unchanged


def test_load_is_booked_on_the_rank_that_was_applied_and_the_conversation_stays_where_it_is() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.finish(first)
    elsewhere = other_rank(first.decision.dp_rank)
    message = make_request(engine=BALANCING_ENGINE, request_id="request-2", prompt_tokens=100)
    second = harness.reuse(message, first, dp_rank=elsewhere)
    (engine_phase,) = harness.service.placement.list_engine_phases()
    assert engine_phase.loads.requests_in_flight == [int(rank == elsewhere) for rank in range(4)]
    assert (second.decision.dp_rank, second.unchanged) == (first.decision.dp_rank, False)


def test_conversation_that_the_table_does_not_have_is_bound_to_the_rank_that_was_applied() -> None:
    before = DecisionHarness().decide_on_stream(PLACED)
    harness = DecisionHarness()
    reused = harness.reuse(PLACED, before, dp_rank=3)
    assert (reused.decision.dp_rank, reused.decision.placement) == (3, PlacementState.RETAINED)
    later = harness.decide_on_stream(make_request(engine=BALANCING_ENGINE, request_id="request-2"))
    assert later.decision.dp_rank == 3


def test_request_that_went_out_without_a_rank_is_booked_nowhere() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.finish(first)
    message = make_request(engine=BALANCING_ENGINE, request_id="request-2")
    harness.reuse(message, first, directive=RankDirective.FORWARD, dp_rank=None)
    assert harness.read_outstanding() == 0


def test_finish_report_of_a_reused_request_frees_its_load_and_judges_the_applied_rank() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.finish(first)
    second = harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-2"), first)
    rank = first.decision.dp_rank
    harness.finish(second, decision_id="", seq=2, reused=True, applied_dp_rank=rank)
    assert harness.read_outstanding() == 0
    assert harness.read_counts(metrics.PLACED_RANKS) == {"prefill/as_placed": 2}


def test_reused_request_counts_against_an_engine_that_ran_it_elsewhere() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.finish(first)
    second = harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-2"), first)
    rank = first.decision.dp_rank
    harness.finish(
        second, decision_id="", seq=2, reused=True, applied_dp_rank=rank, observed_dp_rank=other_rank(rank)
    )
    assert harness.read_counts(metrics.PLACED_RANKS)["prefill/elsewhere"] == 1


def run_elsewhere(harness: DecisionHarness, count: int) -> None:
    for number in range(count):
        decided = harness.decide_on_stream(
            make_request(f"conversation-{number:04}", engine=BALANCING_ENGINE, request_id=f"request-{number}")
        )
        harness.finish(decided, observed_dp_rank=other_rank(decided.decision.dp_rank))


def test_pause_and_its_end_raise_the_generation_of_that_worker_alone() -> None:
    harness = DecisionHarness()
    before, other = harness.service.generation_of(WORKER_ID), harness.service.generation_of("other")
    run_elsewhere(harness, 11)
    paused = harness.service.generation_of(WORKER_ID)
    harness.service.resume(WORKER_ID)
    assert before < paused < harness.service.generation_of(WORKER_ID)
    assert harness.service.generation_of("other") == other
    assert harness.generation_changes == [WORKER_ID, WORKER_ID]


def test_suspending_a_carrier_raises_the_generation_of_all_workers_at_once() -> None:
    harness = DecisionHarness("operational: {single_use_guard: enforce}")
    for cohort in range(3):
        decide_new_conversations(harness, cohort)
    assert harness.generation_changes == [None]


def test_ended_conversation_is_pushed_to_the_clients() -> None:
    harness = DecisionHarness()
    harness.finish(harness.decide_on_stream(PLACED))
    assert harness.service.end_conversation(ConversationHash(CONVERSATION_HASH)) == 1
    assert harness.ended == [CONVERSATION_HASH]


def test_last_request_ends_the_conversation_at_the_clients_once_it_has_finished() -> None:
    harness = DecisionHarness()
    identity = types_pb2.Identity(headers={"x-session-id": "conv-7f3a", "x-dynamo-session-final": "true"})
    decided = harness.decide_on_stream(make_request(engine=PINNING_ENGINE, identity=identity))
    assert harness.ended == []
    harness.finish(decided)
    assert harness.ended == [CONVERSATION_HASH]


def test_record_shows_what_was_applied_and_whether_that_was_right() -> None:
    harness = DecisionHarness()
    first = harness.decide_on_stream(PLACED)
    harness.reuse(make_request(engine=BALANCING_ENGINE, request_id="request-2"), first)
    record = harness.service.recorder.find_by_request("request-2")
    assert record is not None
    assert record.applied is not None
    assert (record.applied.dp_rank, record.unchanged) == (first.decision.dp_rank, True)


def test_cohort_that_lost_requests_is_not_judged() -> None:
    harness = DecisionHarness("operational: {single_use_guard: enforce}")
    for cohort in range(3):
        decide_new_conversations(harness, cohort)
        if cohort == 0:
            harness.service.record_dropped("header:x-session-id", 7)
    assert harness.read_total(metrics.SINGLE_USE_REPORTS) == 0
    assert harness.read_counts(metrics.DROPPED_REQUESTS) == {"header:x-session-id": 7}


def test_dropped_requests_of_a_carrier_that_was_never_seen_make_no_label() -> None:
    harness = DecisionHarness()
    harness.service.record_dropped("header:x-of-an-attacker", 7)
    assert harness.read_counts(metrics.DROPPED_REQUESTS) == {}
