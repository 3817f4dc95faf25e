"""Counters of one client, for the worker's own metrics."""

from __future__ import annotations

from collections import Counter


class Stats:
    """Counts by name and label; docs/reference.md lists the names."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, label: str = "", amount: int = 1) -> None:
        """Adds `amount` to a counter."""
        self._counts[name, label] += amount

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Returns every counter that is not zero: name to label to count."""
        names: dict[str, dict[str, int]] = {}
        for (name, label), value in sorted(self._counts.items()):
            names.setdefault(name, {})[label] = value
        return names
