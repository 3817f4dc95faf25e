"""What placement holds, as gauges: engine phases of one phase are added up, their ranks by number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from routing_hints.metrics import GaugeReader, LabelValues, MetricStore
from routing_hints.vocabulary import Phase
from sidecar.placement.engine_phase import EnginePhase
from sidecar.placement.placement import Placement
from sidecar.telemetry import metrics


def register_gauges(store: MetricStore, placement: Placement, clock: Callable[[], float]) -> None:
    """Registers the gauges of placement.

    Args:
        store: exports them.
        placement: what they show.
        clock: the one that `placement` uses.
    """

    def by_phase(measure: Callable[[list[EnginePhase]], float]) -> GaugeReader:
        def read() -> Iterator[tuple[LabelValues, float]]:
            for phase, engine_phases in _group(placement):
                yield (phase,), measure(engine_phases)

        return read

    def by_rank(measure: Callable[[EnginePhase], Iterable[float]]) -> GaugeReader:
        def read() -> Iterator[tuple[LabelValues, float]]:
            for phase, engine_phases in _group(placement):
                for rank, values in enumerate(zip_longest(*map(measure, engine_phases), fillvalue=0.0)):
                    yield (phase, str(rank)), sum(values)

        return read

    def list_resident(engine_phase: EnginePhase) -> list[float]:
        return engine_phase.loads.resident_tokens(clock())

    def list_outstanding(engine_phase: EnginePhase) -> list[int]:
        return engine_phase.loads.outstanding_tokens

    for metric, read in (
        (
            metrics.PLACEMENT_CONVERSATIONS,
            by_phase(lambda every: sum(one.loads.conversations for one in every)),
        ),
        (metrics.PLACEMENT_REQUESTS_IN_FLIGHT, by_phase(lambda every: sum(one.in_flight for one in every))),
        (
            metrics.PLACEMENT_PAUSED,
            by_phase(lambda every: sum(one.compliance.is_paused(clock()) for one in every)),
        ),
        (metrics.PLACEMENT_OUTSTANDING_TOKENS, by_rank(list_outstanding)),
        (metrics.PLACEMENT_RESIDENT_TOKENS, by_rank(list_resident)),
        (
            metrics.PLACEMENT_OUTSTANDING_SKEW,
            by_phase(lambda every: _find_skew(map(list_outstanding, every))),
        ),
        (metrics.PLACEMENT_RESIDENT_SKEW, by_phase(lambda every: _find_skew(map(list_resident, every)))),
    ):
        store.set_reader(metric, read)


def _group(placement: Placement) -> list[tuple[str, list[EnginePhase]]]:
    groups: defaultdict[Phase, list[EnginePhase]] = defaultdict(list)
    for engine_phase in placement.list_engine_phases():
        groups[engine_phase.key.phase].append(engine_phase)
    return [(phase.name.lower(), engine_phases) for phase, engine_phases in sorted(groups.items())]


def _find_skew(rows: Iterable[Iterable[float]]) -> float:
    """Returns the fullest rank's load against an even share, of the worst engine phase; 0 if all are idle."""
    return max((max(row) * len(row) / sum(row) for row in map(list, rows) if sum(row)), default=0.0)
