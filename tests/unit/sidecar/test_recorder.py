"""The last decisions: found by each of their names, and never more than 4,096."""

from __future__ import annotations

import pytest

from sidecar.decision.decide import decide
from sidecar.decision.recorder import Recorder
from sidecar.model import FinishReport, Phase, Query
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy

_ANSWER = decide(Query(Phase.PREFILL), compile_policy(Policy()))
_REPORT = FinishReport("r", 1, "", 1, 1, False, "", 3, 100, 0)


def _query(request_id: str) -> Query:
    return Query(Phase.PREFILL, request_id, "w")


@pytest.fixture
def recorder() -> Recorder:
    """An empty recorder at second 1,000."""
    return Recorder(lambda: 1_000.0)


def test_a_decision_is_found_by_id_and_by_request(recorder: Recorder) -> None:
    """Both names give the same record."""
    decision_id = recorder.record(_query("r"), _ANSWER)
    record = recorder.find_by_id(decision_id)
    assert record is not None
    assert record is recorder.find_by_request("r")
    assert (record.query.worker_id, record.query.phase, record.decided_at) == ("w", Phase.PREFILL, 1_000.0)


def test_a_request_gives_its_newest_decision(recorder: Recorder) -> None:
    """The second leg's decision hides the first's, which is still found by its id."""
    first, second = (recorder.record(_query("r"), _ANSWER) for _ in range(2))
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.decision_id == second
    assert recorder.find_by_id(first) is not None


@pytest.mark.parametrize("name", ["", "-", "x", "x-0", "0", "x-y", "-0", "0-" + "f" * 300])
def test_a_foreign_id_is_not_found(recorder: Recorder, name: str) -> None:
    """Whatever is asked for, only own ids are found."""
    recorder.record(_query("r"), _ANSWER)
    assert recorder.find_by_id(name) is None


def test_anonymous_requests_are_not_found_by_request(recorder: Recorder) -> None:
    """No id is no name."""
    recorder.record(_query(""), _ANSWER)
    assert recorder.find_by_request("") is None


def test_the_oldest_decision_is_forgotten(recorder: Recorder) -> None:
    """After 4,096 further ones it is found by no name."""
    first = recorder.record(_query("first"), _ANSWER, item=(1, 1))
    for number in range(4_095):
        recorder.record(_query(str(number)), _ANSWER)
    assert recorder.find_by_id(first) is not None
    recorder.record(_query("last"), _ANSWER)
    assert recorder.find_by_id(first) is None
    assert recorder.find_by_request("first") is None
    assert not recorder.finish(_REPORT._replace(seq=1), stream=1)


def test_forgetting_leaves_the_newest_decision_of_a_request(recorder: Recorder) -> None:
    """A request that was decided about again is still found after its first decision is gone."""
    recorder.record(_query("r"), _ANSWER)
    second = recorder.record(_query("r"), _ANSWER)
    for number in range(4_095):
        recorder.record(_query(str(number)), _ANSWER)
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.decision_id == second


def test_ids_of_two_runs_differ() -> None:
    """A restarted sidecar does not take an old id for its own."""
    ids = {Recorder(lambda: 0.0).record(_query("r"), _ANSWER) for _ in range(2)}
    assert len(ids) == 2


def test_a_finish_is_found_by_decision_or_by_item(recorder: Recorder) -> None:
    """The decision's id counts first, else the item on its own stream."""
    decision_id = recorder.record(_query("r"), _ANSWER, item=(1, 7))
    assert recorder.finish(_REPORT._replace(decision_id=decision_id), stream=9)
    assert recorder.finish(_REPORT._replace(seq=7, cached_tokens=5), stream=1)
    record = recorder.find_by_id(decision_id)
    assert record is not None
    assert record.finish == _REPORT._replace(seq=7, cached_tokens=5)


@pytest.mark.parametrize(
    ("stream", "seq", "decision_id"), [(2, 7, ""), (1, 8, ""), (1, 0, ""), (1, 7, "x-0")]
)
def test_a_finish_of_something_else_changes_nothing(
    recorder: Recorder, stream: int, seq: int, decision_id: str
) -> None:
    """Another stream, another item and a foreign decision match nothing."""
    recorder.record(_query("r"), _ANSWER, item=(1, 7))
    assert not recorder.finish(_REPORT._replace(seq=seq, decision_id=decision_id), stream)
    record = recorder.find_by_request("r")
    assert record is not None
    assert record.finish is None
