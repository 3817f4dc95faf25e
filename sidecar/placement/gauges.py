"""Placement as an exporter shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from sidecar.model import Phase
from sidecar.placement.engine_phase import Leg
from sidecar.placement.placement import Placement
from sidecar.policy.compiled import PlacementSettings
from sidecar.telemetry.counters import Counters, Labels


def register_gauges(
    counters: Counters,
    placement: Placement,
    get_settings: Callable[[], PlacementSettings],
    clock: Callable[[], float],
) -> None:
    """Registers what placement holds; legs of one phase are summed up, their ranks by number.

    Args:
        counters: takes the gauges.
        placement: what they show.
        get_settings: gives the policy's part.
        clock: the one that `placement` uses.
    """

    def group() -> list[tuple[Labels, list[Leg]]]:
        # What is over by now must not be shown until the next request comes.
        placement.expire(get_settings())
        groups: defaultdict[Phase, list[Leg]] = defaultdict(list)
        for leg in placement.legs:
            groups[leg.key.phase].append(leg)
        return [((("phase", phase.name.lower()),), legs) for phase, legs in sorted(groups.items())]

    def by_phase(measure: Callable[[Iterable[Leg]], float]) -> Callable[[], Iterator[tuple[Labels, float]]]:
        def read() -> Iterator[tuple[Labels, float]]:
            for labels, legs in group():
                yield labels, measure(legs)

        return read

    def by_rank(measure: Callable[[Leg], Iterable[float]]) -> Callable[[], Iterator[tuple[Labels, float]]]:
        def read() -> Iterator[tuple[Labels, float]]:
            for labels, legs in group():
                for rank, value in enumerate(_add_up(measure(leg) for leg in legs)):
                    yield (*labels, ("rank", str(rank))), value

        return read

    counters.gauge(
        "placement_conversations", by_phase(lambda legs: sum(leg.loads.conversations for leg in legs))
    )
    counters.gauge("placement_requests_in_flight", by_phase(lambda legs: sum(leg.in_flight for leg in legs)))
    counters.gauge(
        "placement_paused",
        by_phase(lambda legs: sum(leg.honour.is_paused(clock()) for leg in legs)),
    )
    counters.gauge("placement_outstanding_tokens", by_rank(lambda leg: leg.loads.outstanding_tokens))
    counters.gauge("placement_resident_tokens", by_rank(lambda leg: leg.loads.resident_tokens(clock())))
    counters.gauge(
        "placement_outstanding_skew_percent",
        by_phase(lambda legs: _find_skew(leg.loads.outstanding_tokens for leg in legs)),
    )
    counters.gauge(
        "placement_resident_skew_percent",
        by_phase(lambda legs: _find_skew(leg.loads.resident_tokens(clock()) for leg in legs)),
    )


def _add_up(rows: Iterable[Iterable[float]]) -> list[float]:
    total: list[float] = []
    for row in rows:
        values = list(row)
        total.extend([0.0] * (len(values) - len(total)))
        for rank, value in enumerate(values):
            total[rank] += value
    return total


def _find_skew(rows: Iterable[Iterable[float]]) -> float:
    """Returns the busiest rank's share of a leg in percent of an even share; of the worst leg."""
    return max((100.0 * max(row) * len(row) / sum(row) for row in map(list, rows) if sum(row)), default=0.0)
