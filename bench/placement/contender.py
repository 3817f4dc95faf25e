"""The placements that are compared: who names a rank for a request, and which router the engine has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import simpy

from bench.placement.engine import EngineShape
from bench.placement.request import Request
from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import MetricStore
from routing_hints.vocabulary import AdpRouter, Phase, RankDirective
from sidecar.model import Engine, FinishReport, PlacementKey
from sidecar.model import Request as EngineRequest
from sidecar.placement.first_rank import choose_preferred
from sidecar.placement.placement import Placement, Ticket
from sidecar.placement.settings import PlacementSettings
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.telemetry import metrics

_STREAM = 1


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to place.

    Attributes:
        name: for tables.
        router: the engine's router, see `rule.build_router`.
        settings: of the sidecar's placement; None leaves it to the engine.
    """

    name: str
    router: str
    settings: PlacementSettings | None = None


_DEFAULTS = compile_policy(Policy()).placement

NO_AFFINITY = Contender("no affinity", "default")
ENGINE_DEFAULT = Contender("engine, round robin", "round_robin")
ENGINE_OPTIONS = (
    Contender("engine, least queued", "least_queued"),
    Contender("engine, least tokens", "least_tokens"),
)
RENDEZVOUS = Contender("sidecar, rendezvous", "default", replace(_DEFAULTS, choose_first=choose_preferred))
LEAST_LOAD = Contender("sidecar, least load", "default", _DEFAULTS)
CONTENDERS = (NO_AFFINITY, RENDEZVOUS, ENGINE_DEFAULT, *ENGINE_OPTIONS, LEAST_LOAD)


def weigh_residents(weight: float) -> Contender:
    """Returns the sidecar's placement with another weight of resident tokens."""
    return Contender(f"{weight:g}", "default", replace(_DEFAULTS, resident_weight=weight))


class Placer:
    """Calls the sidecar's placement as a worker's requests do, and reports as a worker does."""

    def __init__(self, env: simpy.Environment, settings: PlacementSettings, shape: EngineShape) -> None:
        clock: Callable[[], float] = lambda: float(env.now)  # noqa: E731
        store = MetricStore(metrics.TABLE)
        self._placement = Placement(clock, store, lambda: settings, lambda phase: None)
        self._engine = Engine(
            adp_router=AdpRouter.DEFAULT, dp_size=shape.ranks, max_active_requests=shape.max_active
        )
        self._numbers = count(1)

    def place(self, request: Request) -> str:
        """Sets the request's rank; returns the decision, empty while placement pauses."""
        number = next(self._numbers)
        engine_request = EngineRequest(
            Phase.PREFILL,
            request_id=str(number),
            engine=self._engine,
            prompt_tokens=request.prompt_tokens,
        )
        key = PlacementKey(ConversationHash(request.conversation), ConversationHash(""), "")
        proposal = self._placement.propose(engine_request, key)
        if proposal is None:
            return ""
        self._placement.commit(proposal, Ticket(str(number), (_STREAM, number)))
        request.rank_hint = proposal.rank
        return str(number)

    def finish(self, request: Request, decision_id: str) -> None:
        """Reports where a request ran and what was cached there."""
        report = FinishReport(
            request_id=decision_id,
            phase=Phase.PREFILL,
            decision_id=decision_id,
            outcome=1,
            applied_directive=RankDirective.PLACE,
            id_attached=False,
            local_reason="",
            observed_dp_rank=request.rank,
            cached_tokens=request.cached_tokens,
            seq=0,
        )
        self._placement.finish(report, _STREAM, "")
