"""A bounded map that evicts the least recently used entry.

Written by hand because the base install in a worker is only grpcio, protobuf and structlog.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruMap(Generic[K, V]):
    """Holds at most `max_entries` entries; with 0 it holds none."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns the value of `key` and marks it as used; None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> tuple[K, V] | None:
        """Sets the value of `key`; evicts and returns the least recently used entry if the map is full."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            return self._entries.popitem(last=False)
        return None

    def discard(self, key: K) -> None:
        """Removes `key` if it is there."""
        self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)
