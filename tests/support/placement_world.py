"""A placement with a clock that tests turn, and short ways to ask it and to end requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from sidecar.model import (
    AdpRouter,
    ConversationHash,
    Decision,
    Engine,
    FinishReport,
    Phase,
    PlacementKey,
    Query,
    RankDirective,
)
from sidecar.placement.placement import Placement, Ticket
from sidecar.policy.compiled import PlacementSettings
from sidecar.telemetry.counters import Counters

SETTINGS = PlacementSettings(
    first_by_hash=False,
    resident_weight=0.5,
    idle_ttl_s=3_600.0,
    lease_ttl_s=600.0,
    max_conversations=1_000,
)
COMPLETED, FAILED, CANCELLED = 1, 2, 3
_NUMBERS = count(1)


class World:
    """One worker that asks about one engine of four ranks, unless a call says otherwise."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 1_000.0
        self.settings = replace(SETTINGS, **settings)
        self.counters = Counters()
        self.pauses: list[Phase] = []
        self.placement = Placement(lambda: self.now_s, self.counters, self.pauses.append)

    def ask(
        self,
        conversation: str = "",
        tokens: int = 1_000,
        *,
        request: str | None = None,
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
    ) -> Asked | None:
        """Asks as the decider does; None while nothing is placed."""
        number = next(_NUMBERS)
        query = Query(
            phase,
            request_id=f"r{number}" if request is None else request,
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
        self.placement.expire(self.settings)
        proposal = self.placement.propose(query, key, self.settings)
        if proposal is None:
            return None
        ticket = None if unary else Ticket(f"d{number}", (stream, number))
        self.placement.commit(proposal, self.settings, ticket)
        return Asked(self, number, query, proposal.rank, proposal.decision)

    def peek(self, conversation: str, tokens: int = 1_000) -> tuple[int, Decision] | None:
        """What `ask` would be answered now, without asking."""
        query = Query(
            Phase.PREFILL,
            worker_id="w",
            engine=Engine(dp_size=4, instance_id="i"),
            model="m",
            prompt_tokens=tokens,
        )
        key = PlacementKey(ConversationHash(conversation), ConversationHash(""), "")
        proposal = self.placement.propose(query, key, self.settings)
        return None if proposal is None else (proposal.rank, proposal.decision)

    def run(self, conversation: str, tokens: int = 1_000, **ask: Any) -> Asked:
        """One turn from question to end, observed where it was placed."""
        asked = self.ask(conversation, tokens, **ask)
        assert asked is not None
        asked.finish(observed=asked.rank)
        return asked

    def outstanding(self, phase: Phase = Phase.PREFILL) -> list[int]:
        """Outstanding tokens by rank, of the leg that was used last."""
        return [leg for leg in self.placement.legs if leg.key.phase is phase][-1].loads.outstanding_tokens

    def resident(self) -> list[float]:
        """Resident tokens by rank, of the leg that was used last."""
        return list(self.placement.legs)[-1].loads.resident_tokens(self.now_s)

    def counted(self, name: str) -> dict[str, int]:
        """A counter by its labels' values."""
        found = {labels: value for counter, labels, value in self.counters if counter == name}
        return {"/".join(value for _, value in labels): total for labels, total in found.items()}


class Asked:
    """One request that was asked about."""

    def __init__(self, world: World, number: int, query: Query, rank: int, decision: Decision) -> None:
        self._world = world
        self._number = number
        self.query = query
        self.rank = rank
        self.decision = decision

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
        """Reports its end; `decided` and `seq` say which of its names the report holds."""
        report = FinishReport(
            request_id=self.query.request_id,
            phase=self.query.phase,
            decision_id=f"d{self._number}" if decided else "",
            outcome=outcome,
            applied_directive=applied,
            id_attached=False,
            local_reason="",
            observed_dp_rank=observed,
            cached_tokens=cached,
            seq=self._number if seq else 0,
        )
        self._world.placement.finish(report, stream, self.query.worker_id)
