"""Errors that no rule accounts for: counted, and logged once per place without the values involved."""

from __future__ import annotations

import traceback

import structlog

from routing_hints.metrics import MetricStore
from sidecar.telemetry import metrics

_NAMED_FRAMES = 8


class InternalErrorLog:
    """Counts what should not happen and says each kind once, without the values that were involved."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        store.add(metrics.INTERNAL_ERRORS, amount=0)
        self._said: set[str] = set()
        self._log = structlog.get_logger("sidecar")

    def report(self, error: Exception) -> None:
        """Takes an exception that no rule accounts for."""
        self._store.add(metrics.INTERNAL_ERRORS)
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-_NAMED_FRAMES:]))
        kind = f"{type(error).__name__} in {place}"
        if kind not in self._said:
            self._said.add(kind)
            self._log.error("internal_error", kind=kind)
