"""Counters since the start and gauges of now, kept where they are cheap and read only when asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
GaugeReader: TypeAlias = Callable[[], Iterable[tuple[Labels, float]]]


class Counters:
    """Counts by name and labels. Every label takes few values, none of them chosen by a client."""

    def __init__(self) -> None:
        self.open_streams = 0
        self._values: defaultdict[tuple[str, Labels], int] = defaultdict(int)
        self._gauges: dict[str, GaugeReader] = {}

    def declare(self, name: str, *labels: tuple[str, str]) -> None:
        """Shows a counter to Prometheus before it is raised, so that an alert sees the first rise."""
        self.add(name, *labels, amount=0)

    def add(self, name: str, *labels: tuple[str, str], amount: int = 1) -> None:
        """Raises one counter."""
        self._values[name, labels] += amount

    def gauge(self, name: str, read: GaugeReader) -> None:
        """Registers what is read anew each time that somebody looks.

        Args:
            name: as in docs/reference.md.
            read: gives labels and value of each of its series.
        """
        self._gauges[name] = read

    def __iter__(self) -> Iterator[tuple[str, Labels, int]]:
        """Gives name, labels and value of every counter that was ever raised, sorted."""
        return (entry for entry in self.read_counters() if entry[2])

    def read_counters(self) -> Iterator[tuple[str, Labels, int]]:
        """Gives name, labels and value of every counter that was raised or declared, sorted."""
        for (name, labels), value in sorted(self._values.items()):
            yield name, labels, value

    def read_gauges(self) -> Iterator[tuple[str, Labels, float]]:
        """Gives name, labels and value of every gauge, sorted by name."""
        for name, read in sorted(self._gauges.items()):
            for labels, value in read():
                yield name, labels, value
