"""Metrics as both processes declare and count them: a table of what there is, and a store of the values.

A metric is declared once, with its labels and its help text; call sites count by that handle. What is
exported, what GetStats returns and what docs/reference.md lists all follow from the table. Counting costs a
dictionary update, since it happens on the request path, and the worker's base install has no metrics library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

LabelValues: TypeAlias = tuple[str, ...]
"""Values of a metric's labels, in their declared order. None of them is chosen by a client."""
GaugeReader: TypeAlias = Callable[[], Iterable[tuple[LabelValues, float]]]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One declared metric; the handle that call sites count by.

    Attributes:
        name: without the table's prefix and without `_total`.
        kind: `counter`, `gauge` or `histogram`.
        help: what it counts, one sentence.
        labels: names of its labels.
        buckets: upper bounds of a histogram, in the unit of its name.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class MetricTable:
    """The metrics of one process, in the order of their declaration.

    Args:
        prefix: begins every exported name.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._metrics: list[Metric] = []

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def counter(self, name: str, help_text: str, *labels: str) -> Metric:
        """Declares what only rises."""
        return self._declare(Metric(name, "counter", help_text, labels))

    def gauge(self, name: str, help_text: str, *labels: str) -> Metric:
        """Declares what is read when somebody looks."""
        return self._declare(Metric(name, "gauge", help_text, labels))

    def histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Metric:
        """Declares a distribution."""
        return self._declare(Metric(name, "histogram", help_text, (), buckets))

    def _declare(self, metric: Metric) -> Metric:
        self._metrics.append(metric)
        return metric


class Series(NamedTuple):
    """One series of a metric as it is now."""

    metric: Metric
    labels: LabelValues
    value: float


@dataclass(slots=True)
class Distribution:
    """The values that a histogram has observed.

    Attributes:
        counts: observations by bucket, the last one beyond all bounds; not cumulative.
        total: the sum of the observed values.
    """

    counts: list[int]
    total: float = 0.0


class MetricStore:
    """The values of one process's metrics. Used from one thread.

    Args:
        table: what is counted.
    """

    def __init__(self, table: MetricTable) -> None:
        self.table = table
        self._counts: defaultdict[tuple[Metric, LabelValues], int] = defaultdict(int)
        self._readers: dict[Metric, GaugeReader] = {}
        self._distributions = {
            metric: Distribution([0] * (len(metric.buckets) + 1))
            for metric in table
            if metric.kind == "histogram"
        }

    def add(self, metric: Metric, *labels: str, amount: int = 1) -> None:
        """Raises a counter; with amount 0 its series is exported before it first rises, as alerts need."""
        self._counts[metric, labels] += amount

    def observe(self, metric: Metric, value: float) -> None:
        """Adds a value to a histogram."""
        distribution = self._distributions[metric]
        distribution.counts[bisect_left(metric.buckets, value)] += 1
        distribution.total += value

    def set_reader(self, metric: Metric, read: GaugeReader) -> None:
        """Registers what gives the series of a gauge each time that somebody looks."""
        self._readers[metric] = read

    def read_counters(self) -> Iterator[Series]:
        """Gives every series of the counters, metrics as declared and labels sorted."""
        by_metric: defaultdict[Metric, list[Series]] = defaultdict(list)
        for (metric, labels), value in sorted(self._counts.items(), key=lambda entry: entry[0][1]):
            by_metric[metric].append(Series(metric, labels, value))
        for metric in self.table:
            yield from by_metric[metric]

    def read_gauges(self) -> Iterator[Series]:
        """Gives every series of the gauges, metrics as declared."""
        for metric in self.table:
            read = self._readers.get(metric)
            for labels, value in read() if read is not None else ():
                yield Series(metric, labels, value)

    def read_histograms(self) -> Iterator[tuple[Metric, Distribution]]:
        """Gives every histogram, as declared."""
        return iter(self._distributions.items())
