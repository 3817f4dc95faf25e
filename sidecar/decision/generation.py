"""Counts what changes decisions without a change of the policy, by worker.

Clients reuse a decision only while the number that it was decided under is in force.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_WORKERS = 1_024
"""Workers that are counted apart; beyond, all are counted together."""


class ReuseGenerations:
    """The `reuse_generation` of every worker.

    Args:
        on_change: called with the worker whose number changed; None for all of them.
    """

    def __init__(self, on_change: Callable[[str | None], None]) -> None:
        self._on_change = on_change
        self._shared = 1
        self._by_worker: dict[str, int] = {}

    def of(self, worker_id: str) -> int:
        """Returns the number in force for a worker; it only rises."""
        return self._shared + self._by_worker.get(worker_id, 0)

    def raise_for(self, worker_id: str) -> None:
        """Ends reuse of what was decided for one worker."""
        self._by_worker[worker_id] = self._by_worker.get(worker_id, 0) + 1
        if len(self._by_worker) > MAX_WORKERS:
            # Larger than every sum so far, so that no worker's number comes again.
            self._shared += max(self._by_worker.values()) + 1
            self._by_worker.clear()
            self._on_change(None)
        else:
            self._on_change(worker_id)

    def raise_all(self) -> None:
        """Ends reuse of everything that was decided."""
        self._shared += 1
        self._on_change(None)
