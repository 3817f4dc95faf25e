"""What finish reports are counted as, and what they say about affinity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import Metric, MetricStore
from routing_hints.vocabulary import AdpRouter, EngineDialect, Phase, RankDirective, RankSource, RequestKind
from sidecar.decision.decide import decide
from sidecar.decision.outcome import LastRankIndex, OutcomeLog
from sidecar.decision.recorder import Recorder
from sidecar.model import Engine, FinishReport, Identity, Request
from sidecar.telemetry import metrics
from tests.support.metric_values import read_counts, read_gauge
from tests.support.policies import compile_yaml

_FORWARD, _WITHHOLD, _PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
_ENGINE = Engine(EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION)
_REQUEST = Request(
    Phase.PREFILL,
    request_id="r",
    worker_id="w",
    identity=Identity("conv"),
    router_rank=2,
    engine=_ENGINE,
    prompt_tokens=1_000,
)


class OutcomeHarness:
    """An outcome log with a recorder of its decisions."""

    def __init__(self) -> None:
        self.store = MetricStore(metrics.TABLE)
        self.log = OutcomeLog(self.store)
        self.recorder = Recorder(lambda: 0.0)

    def finish(self, request: Request = _REQUEST, **report: Any) -> None:
        """Decides about a request and reports that it ended as decided, unless `report` says otherwise."""
        decision = decide(request, compile_yaml())
        decision_id = self.recorder.record(request, decision)
        end = FinishReport("r", request.phase, decision_id, 1, _WITHHOLD, True, "", None, None, 0)
        end = end._replace(**report)
        self.log.take(end, self.recorder.finish(end, stream=1))

    def read_counts(self, metric: Metric) -> dict[str, float]:
        return read_counts(self.store, metric)

    def read_active_ratio(self) -> dict[str, float]:
        return read_gauge(self.store, metrics.AFFINITY_ACTIVE)


@pytest.fixture
def harness() -> OutcomeHarness:
    return OutcomeHarness()


def test_finish_report_is_counted_by_what_the_client_applied(harness: OutcomeHarness) -> None:
    """Which may differ from what was decided."""
    harness.finish()
    harness.finish(applied_directive=_FORWARD, id_attached=False, outcome=3)
    assert harness.read_counts(metrics.FINISHES) == {
        "completed/withhold/true": 1,
        "cancelled/forward/false": 1,
    }


def test_unset_outcome_is_completed(harness: OutcomeHarness) -> None:
    harness.finish(outcome=0)
    assert harness.read_counts(metrics.FINISHES) == {"completed/withhold/true": 1}


def test_enum_values_of_a_newer_client_are_counted_as_unknown(harness: OutcomeHarness) -> None:
    harness.finish(applied_directive=99, outcome=99)
    assert harness.read_counts(metrics.FINISHES) == {"unknown/unknown/true": 1}


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("sidecar-timed-out", "sidecar-timed-out"),
        ("dialect-cannot-carry-id", "dialect-cannot-carry-id"),
        ("grpc-unimplemented", "grpc"),
        ("made-up-by-a-client", "other"),
    ],
)
def test_local_reason_is_a_label_of_a_closed_set(harness: OutcomeHarness, reason: str, label: str) -> None:
    """A client can't make series by making reasons up."""
    harness.finish(local_reason=reason)
    assert harness.read_counts(metrics.LOCAL_REASONS) == {label: 1}


def test_client_that_did_as_decided_counts_under_no_reason(harness: OutcomeHarness) -> None:
    harness.finish()
    assert harness.read_counts(metrics.LOCAL_REASONS) == {}


def test_returns_of_a_conversation_are_first_same_moved_or_unknown(harness: OutcomeHarness) -> None:
    for rank in (3, 3, 1, None):
        harness.finish(observed_dp_rank=rank)
    assert harness.read_counts(metrics.CONVERSATION_RETURNS) == {
        f"withhold/none/prefill/{result}": 1 for result in ("first", "same", "moved", "unknown")
    }


def test_return_of_a_request_without_identity_is_unknown(harness: OutcomeHarness) -> None:
    harness.finish(_REQUEST._replace(identity=Identity()), observed_dp_rank=3, id_attached=False)
    assert harness.read_counts(metrics.CONVERSATION_RETURNS) == {"withhold/none/prefill/unknown": 1}


def test_cached_tokens_and_their_prompts_are_counted_together(harness: OutcomeHarness) -> None:
    """Only where the engine reported them, so that the quotient is the cached share."""
    harness.finish(cached_tokens=600)
    harness.finish(cached_tokens=None)
    harness.finish(_REQUEST._replace(prompt_tokens=0), cached_tokens=5)
    assert harness.read_counts(metrics.CACHED_TOKENS) == {"withhold/none/prefill": 600}
    assert harness.read_counts(metrics.PROMPT_TOKENS) == {"withhold/none/prefill": 1_000}


def test_finish_report_without_a_recorded_decision_counts_as_unmatched_and_as_nothing_else(
    harness: OutcomeHarness,
) -> None:
    harness.finish(decision_id="gone-0")
    assert harness.read_counts(metrics.FINISHES) == {"completed/withhold/true": 1}
    assert harness.read_counts(metrics.UNMATCHED_FINISHES) == {"": 1}
    assert harness.read_counts(metrics.CONVERSATION_RETURNS) == {}
    assert harness.read_active_ratio() == {}


@pytest.mark.parametrize(
    ("request_", "report", "ratio"),
    [
        (_REQUEST, {}, 1.0),
        (_REQUEST, {"applied_directive": _PLACE, "id_attached": False}, 1.0),
        (_REQUEST, {"id_attached": False}, 0.0),
        (_REQUEST, {"applied_directive": _FORWARD}, 0.0),
        (_REQUEST._replace(router_rank=None), {"applied_directive": _FORWARD}, 1.0),
        (
            _REQUEST._replace(engine=replace(_ENGINE, rank_source=RankSource.ROUTER)),
            {"applied_directive": _FORWARD},
            1.0,
        ),
        (_REQUEST._replace(identity=Identity()), {"applied_directive": _PLACE}, 0.0),
    ],
    ids=["withheld", "placed", "no-id", "forced", "no-rank", "router-rank", "no-identity"],
)
def test_affinity_is_active_where_the_conversation_can_return_to_its_rank(
    harness: OutcomeHarness, request_: Request, report: dict[str, Any], ratio: float
) -> None:
    """The id attached and no rank forced over the engine's router, or placed by the sidecar."""
    harness.finish(request_, **report)
    assert harness.read_active_ratio() == {"prefill": ratio}


def test_affinity_is_shown_by_phase(harness: OutcomeHarness) -> None:
    harness.finish()
    harness.finish(_REQUEST._replace(phase=Phase.DECODE), id_attached=False)
    assert harness.read_active_ratio() == {"prefill": 1.0, "decode": 0.0}


def test_health_checks_and_requests_without_engine_parameters_say_nothing_about_affinity(
    harness: OutcomeHarness,
) -> None:
    """The first are forwarded on purpose; of the others nothing was sent to the engine."""
    health_check = _REQUEST._replace(kind=RequestKind.HEALTH_CHECK)
    harness.finish(health_check, applied_directive=_FORWARD, id_attached=False)
    harness.finish(applied_directive=RankDirective.UNSPECIFIED, id_attached=False)
    assert harness.read_active_ratio() == {}


def test_affinity_ratio_is_of_the_last_200_requests(harness: OutcomeHarness) -> None:
    """So a regression shows, however long all was well."""
    for _ in range(300):
        harness.finish()
    for _ in range(100):
        harness.finish(id_attached=False, applied_directive=_FORWARD)
    assert harness.read_active_ratio() == {"prefill": 0.5}
    for _ in range(100):
        harness.finish(id_attached=False, applied_directive=_FORWARD)
    assert harness.read_active_ratio() == {"prefill": 0.0}


def test_request_sent_with_neither_rank_nor_id_is_counted_except_for_the_kv_cache_aware_router(
    harness: OutcomeHarness,
) -> None:
    """It shows at zero, so that an alert sees the rise; that router needs no id."""
    assert harness.read_counts(metrics.WITHHELD_WITHOUT_ID) == {"": 0}
    probing = replace(_ENGINE, adp_router=AdpRouter.KV_CACHE_AWARE)
    harness.finish(_REQUEST._replace(engine=probing), id_attached=False)
    harness.finish()
    assert harness.read_counts(metrics.WITHHELD_WITHOUT_ID) == {"": 0}
    harness.finish(id_attached=False)
    assert harness.read_counts(metrics.WITHHELD_WITHOUT_ID) == {"": 1}


def _note(last_ranks: LastRankIndex, name: str, rank: int = 3, phase: Phase = Phase.PREFILL) -> str:
    return last_ranks.note(phase, ConversationHash(name), "w", rank)


@pytest.mark.parametrize(
    ("worker_id", "rank", "result"), [("w", 3, "same"), ("w", 2, "moved"), ("other", 3, "moved")]
)
def test_turn_is_compared_with_worker_and_rank_of_the_turn_before(
    worker_id: str, rank: int, result: str
) -> None:
    last_ranks = LastRankIndex()
    assert _note(last_ranks, "a") == "first"
    assert last_ranks.note(Phase.PREFILL, ConversationHash("a"), worker_id, rank) == result


def test_turn_is_compared_with_the_turn_before_of_its_phase() -> None:
    last_ranks = LastRankIndex()
    _note(last_ranks, "a")
    assert _note(last_ranks, "a", rank=1, phase=Phase.DECODE) == "first"
    assert _note(last_ranks, "a") == "same"


def test_conversation_observed_longest_ago_is_forgotten() -> None:
    last_ranks = LastRankIndex(max_remembered=2)
    assert [_note(last_ranks, name) for name in "abacba"] == [
        "first",
        "first",
        "same",
        "first",
        "first",
        "first",
    ]
