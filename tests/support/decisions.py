"""A decision service with a clock that tests move, and messages for requests as at the server."""

from __future__ import annotations

from itertools import count
from typing import Any

from routing_hints.metrics import Metric, MetricStore
from routing_hints.v1 import service_pb2
from routing_hints.vocabulary import FinishOutcome, Phase
from sidecar.decision.service import Decided, DecisionService, Item
from sidecar.model import Applied, Explanation, FinishReport
from sidecar.telemetry import metrics
from sidecar.wire.request_codec import decode_request
from sidecar.wire.response_codec import serialize_decision
from tests.support.metric_values import read_counts, read_gauge
from tests.support.policies import compile_yaml

WORKER_ID = "w"


class DecisionHarness:
    """A service that decides by one policy.

    Args:
        policy: as in a policy file.
    """

    def __init__(self, policy: str = "") -> None:
        self.now_s = 0.0
        self.policy = compile_yaml(policy)
        self.store = MetricStore(metrics.TABLE)
        self.pauses: list[Phase] = []
        self.generation_changes: list[str | None] = []
        self.ended: list[str] = []
        self.service = DecisionService(
            lambda: self.policy,
            self.store,
            serialize_decision,
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s,
            on_pause=lambda key: self.pauses.append(key.phase),
            on_generation=self.generation_changes.append,
            on_ended=self.ended.append,
        )
        self._seqs = count(1)

    def decide(
        self,
        message: service_pb2.EnrichRequest,
        item: Item | None = None,
        applied: Applied | None = None,
    ) -> Decided:
        """Decides about a request; without an item no finish report will follow."""
        return self.service.decide(*decode_request(message, worker_id=WORKER_ID), item, applied)

    def decide_on_stream(self, message: service_pb2.EnrichRequest, applied: Applied | None = None) -> Decided:
        """Decides about a request whose finish report will follow."""
        return self.decide(message, (1, next(self._seqs)), applied)

    def reuse(self, message: service_pb2.EnrichRequest, decided: Decided, **changes: Any) -> Decided:
        """Decides about a request to which its client applied an earlier decision."""
        decision = decided.decision
        applied = Applied(decision.directive, decision.dp_rank, decided.decision_id)
        return self.decide_on_stream(message, applied._replace(**changes))

    def explain(self, message: service_pb2.EnrichRequest) -> Explanation:
        """Explains the decision about a request."""
        return self.service.explain(*decode_request(message, worker_id=WORKER_ID))

    def finish(self, decided: Decided, **report: Any) -> None:
        """Reports that a prefill request ended as it was decided, unless `report` says otherwise."""
        decision = decided.decision
        as_decided = FinishReport(
            request_id="",
            phase=Phase.PREFILL,
            decision_id=decided.decision_id,
            outcome=FinishOutcome.COMPLETED,
            applied_directive=decision.directive,
            id_attached=decision.conversation_id is not None,
            local_reason="",
            observed_dp_rank=decision.dp_rank,
            cached_tokens=None,
            seq=0,
        )
        self.service.finish(as_decided._replace(**report), 1, WORKER_ID)

    def read_counts(self, metric: Metric) -> dict[str, float]:
        """Returns a counter by its label values."""
        return read_counts(self.store, metric)

    def read_total(self, metric: Metric) -> float:
        """Returns a counter over all of its labels."""
        return sum(self.read_counts(metric).values())

    def read_gauge(self, metric: Metric) -> dict[str, float]:
        """Returns a gauge by its label values."""
        return read_gauge(self.store, metric)

    def read_outstanding(self) -> int:
        """Returns the tokens that requests in flight have yet to compute, on any rank."""
        engine_phases = self.service.placement.list_engine_phases()
        return sum(sum(each.loads.outstanding_tokens) for each in engine_phases)
