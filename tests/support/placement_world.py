"""A placement with a clock that tests move, and short ways to place requests and to finish them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import Metric, MetricStore
from routing_hints.vocabulary import AdpRouter, Phase, PlacementState, RankDirective
from sidecar.model import Engine, FinishReport, PlacementKey, Request
from sidecar.placement.first_rank import choose_least_loaded
from sidecar.placement.placement import Placement, Proposal, Ticket
from sidecar.placement.settings import PlacementSettings
from sidecar.placement.table import Entry
from sidecar.telemetry import metrics
from tests.support.metric_values import read_counts

SETTINGS = PlacementSettings(
    choose_first=choose_least_loaded,
    resident_weight=0.5,
    idle_ttl_s=3_600.0,
    lease_ttl_s=600.0,
    max_conversations=1_000,
)
COMPLETED, FAILED, CANCELLED = 1, 2, 3
_NUMBERS = count(1)
_MORE_THAN_ANY_TEST_HAS = 100_000


class PlacementHarness:
    """One worker with one engine of four ranks, unless a call says otherwise."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 1_000.0
        self.settings = replace(SETTINGS, **settings)
        self.store = MetricStore(metrics.TABLE)
        self.pauses: list[Phase] = []
        self.placement = Placement(
            lambda: self.now_s,
            self.store,
            lambda: self.settings,
            lambda key: self.pauses.append(key.phase),
        )

    def try_place(
        self,
        conversation: str = "",
        tokens: int = 1_000,
        *,
        request_id: str | None = None,
        parent: str = "",
        tenant: str = "",
        phase: Phase = Phase.PREFILL,
        worker: str = "w",
        instance: str = "i",
        model: str = "m",
        dp_size: int = 4,
        max_active: int = 0,
        known_rank: int | None = None,
        unary: bool = False,
        stream: int = 1,
    ) -> PlacedRequest | None:
        """Proposes and commits as the decision service does; None while placement is paused."""
        number = next(_NUMBERS)
        request = Request(
            phase,
            request_id=f"r{number}" if request_id is None else request_id,
            worker_id=worker,
            engine=Engine(
                adp_router=AdpRouter.DEFAULT,
                dp_size=dp_size,
                instance_id=instance,
                max_active_requests=max_active,
            ),
            model=model,
            prompt_tokens=tokens,
            known_rank=known_rank,
        )
        key = PlacementKey(ConversationHash(conversation), ConversationHash(parent), tenant)
        proposal = self.placement.propose(request, key)
        if proposal is None:
            return None
        self.placement.commit(proposal, None if unary else Ticket(f"d{number}", (stream, number)))
        return PlacedRequest(self, number, proposal)

    def place(self, conversation: str = "", tokens: int = 1_000, **options: Any) -> PlacedRequest:
        """Does as `try_place` where placement is not paused."""
        placed = self.try_place(conversation, tokens, **options)
        assert placed is not None, "placement is paused"
        return placed

    def run_turn(self, conversation: str, tokens: int = 1_000, **options: Any) -> PlacedRequest:
        """Places one turn and finishes it on the rank where it was placed."""
        placed = self.place(conversation, tokens, **options)
        placed.finish(observed=placed.rank)
        return placed

    def preview(self, conversation: str, tokens: int = 1_000) -> tuple[int, PlacementState] | None:
        """Returns what `try_place` would give now, without committing to it."""
        request = Request(
            Phase.PREFILL,
            worker_id="w",
            engine=Engine(dp_size=4, instance_id="i"),
            model="m",
            prompt_tokens=tokens,
        )
        key = PlacementKey(ConversationHash(conversation), ConversationHash(""), "")
        proposal = self.placement.propose(request, key)
        return None if proposal is None else (proposal.rank, proposal.placement)

    def list_entries(self) -> list[Entry]:
        """Returns the table, most recently used first."""
        return self.placement.list_used_before(None, "", _MORE_THAN_ANY_TEST_HAS)

    def list_conversations(self) -> list[str]:
        """Returns the conversations of the table, most recently used first."""
        return [entry.conversation for entry in self.list_entries()]

    def outstanding(self, phase: Phase = Phase.PREFILL) -> list[int]:
        """Returns outstanding tokens by rank, of the engine phase that was used last."""
        engine_phases = [each for each in self.placement.list_engine_phases() if each.key.phase is phase]
        return engine_phases[-1].loads.outstanding_tokens

    def resident(self) -> list[float]:
        """Returns resident tokens by rank, of the engine phase that was used last."""
        return self.placement.list_engine_phases()[-1].loads.resident_tokens(self.now_s)

    def read_counts(self, metric: Metric) -> dict[str, float]:
        """Returns a counter by its label values."""
        return read_counts(self.store, metric)


class PlacedRequest:
    """One request that was placed."""

    def __init__(self, harness: PlacementHarness, number: int, proposal: Proposal) -> None:
        self._harness = harness
        self._number = number
        self.request = proposal.request
        self.rank = proposal.rank
        self.placement = proposal.placement

    def finish(
        self,
        *,
        outcome: int = COMPLETED,
        observed: int | None = None,
        cached: int | None = None,
        applied: RankDirective = RankDirective.PLACE,
        decided: bool = True,
        seq: bool = False,
        stream: int = 1,
    ) -> None:
        """Reports its end; `decided` and `seq` say which of its names the finish report holds."""
        report = FinishReport(
            request_id=self.request.request_id,
            phase=self.request.phase,
            decision_id=f"d{self._number}" if decided else "",
            outcome=outcome,
            applied_directive=applied,
            id_attached=False,
            local_reason="",
            observed_dp_rank=observed,
            cached_tokens=cached,
            seq=self._number if seq else 0,
        )
        self._harness.placement.finish(report, stream, self.request.worker_id)
