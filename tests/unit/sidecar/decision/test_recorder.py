"""The last 4,096 decisions, and by which names they are found."""

from __future__ import annotations

import pytest

from routing_hints.vocabulary import Phase
from sidecar.decision.decide import decide
from sidecar.decision.recorder import Recorder
from sidecar.model import FinishReport, Request
from tests.support.policies import compile_yaml

_DECISION = decide(Request(Phase.PREFILL), compile_yaml())
_REPORT = FinishReport("r", 1, "", 1, 1, False, "", 3, 100, 0)


def _request(request_id: str) -> Request:
    return Request(Phase.PREFILL, request_id, "w")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(lambda: 1_000.0)


def test_decision_is_found_by_its_id_and_by_its_request(recorder: Recorder) -> None:
    decision_id = recorder.record(_request("r"), _DECISION)
    record = recorder.find_by_id(decision_id)
    assert record is not None
    assert record is recorder.find_by_request("r")
    assert (record.request.worker_id, record.request.phase, record.decided_at) == (
        "w",
        Phase.PREFILL,
        1_000.0,
    )


def test_request_id_finds_the_newest_decision(recorder: Recorder) -> None:
    """Both phases of a request have its id; the decision about the first is still found by its own."""
    first, second = (recorder.record(_request("r"), _DECISION) for _ in range(2))
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.decision_id == second
    assert recorder.find_by_id(first) is not None


@pytest.mark.parametrize("name", ["", "-", "x", "x-0", "0", "x-y", "-0", "0-" + "f" * 300])
def test_id_that_this_recorder_did_not_make_finds_nothing(recorder: Recorder, name: str) -> None:
    recorder.record(_request("r"), _DECISION)
    assert recorder.find_by_id(name) is None


def test_empty_request_id_finds_nothing(recorder: Recorder) -> None:
    recorder.record(_request(""), _DECISION)
    assert recorder.find_by_request("") is None


def test_decision_is_found_by_no_name_after_4096_further_ones(recorder: Recorder) -> None:
    first = recorder.record(_request("first"), _DECISION, item=(1, 1))
    for number in range(4_095):
        recorder.record(_request(str(number)), _DECISION)
    assert recorder.find_by_id(first) is not None
    recorder.record(_request("last"), _DECISION)
    assert recorder.find_by_id(first) is None
    assert recorder.find_by_request("first") is None
    assert not recorder.finish(_REPORT._replace(seq=1), stream=1)


def test_request_is_still_found_by_its_second_decision_when_the_first_is_forgotten(
    recorder: Recorder,
) -> None:
    recorder.record(_request("r"), _DECISION)
    second = recorder.record(_request("r"), _DECISION)
    for number in range(4_095):
        recorder.record(_request(str(number)), _DECISION)
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.decision_id == second


def test_decision_ids_of_two_runs_differ() -> None:
    """So a restarted sidecar finds nothing by an id from before."""
    ids = {Recorder(lambda: 0.0).record(_request("r"), _DECISION) for _ in range(2)}
    assert len(ids) == 2


def test_finish_report_finds_its_decision_by_the_decision_id_else_by_stream_and_seq(
    recorder: Recorder,
) -> None:
    decision_id = recorder.record(_request("r"), _DECISION, item=(1, 7))
    assert recorder.finish(_REPORT._replace(decision_id=decision_id), stream=9)
    assert recorder.finish(_REPORT._replace(seq=7, cached_tokens=5), stream=1)
    record = recorder.find_by_id(decision_id)
    assert record is not None
    assert record.finish == _REPORT._replace(seq=7, cached_tokens=5)


@pytest.mark.parametrize(
    ("stream", "seq", "decision_id"), [(2, 7, ""), (1, 8, ""), (1, 0, ""), (1, 7, "x-0")]
)
def test_finish_report_of_another_stream_item_or_decision_changes_nothing(
    recorder: Recorder, stream: int, seq: int, decision_id: str
) -> None:
    recorder.record(_request("r"), _DECISION, item=(1, 7))
    assert not recorder.finish(_REPORT._replace(seq=seq, decision_id=decision_id), stream)
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.finish is None
