"""Counters since the start, kept where they are cheap to raise and read only when asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Counters:
    """Counts by name and labels. Every label takes few values, none of them sent by a client."""

    def __init__(self) -> None:
        self.open_streams = 0
        self._values: defaultdict[tuple[str, Labels], int] = defaultdict(int)

    def add(self, name: str, *labels: tuple[str, str]) -> None:
        """Raises one counter by one."""
        self._values[name, labels] += 1

    def __iter__(self) -> Iterator[tuple[str, Labels, int]]:
        """Gives name, labels and value of every counter that was ever raised, sorted."""
        for (name, labels), value in sorted(self._values.items()):
            yield name, labels, value
