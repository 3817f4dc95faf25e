"""The last decisions and what became of them, in memory that does not grow."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.model import Answer, FinishReport, Query, RequestKind

CAPACITY = 4_096

_NORMAL = frozenset({RequestKind.UNSPECIFIED, RequestKind.NORMAL})


@dataclass(slots=True)
class Record:
    """One decision."""

    decision_id: str
    decided_at: float
    """Seconds since the epoch."""
    query: Query
    """Without identity and tenant."""
    answer: Answer
    item: tuple[int, int] | None
    """Stream and `seq` that asked; None for a request of its own."""
    finish: FinishReport | None = None

    @property
    def is_normal(self) -> bool:
        """Whether it was a user's request."""
        return self.query.kind in _NORMAL


class Recorder:
    """Keeps the last 4,096 decisions.

    Args:
        clock: gives the seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Ids of different runs of the sidecar must differ.
        self._run = secrets.token_hex(4)
        self._count = 0
        self._records: list[Record | None] = [None] * CAPACITY
        self._by_request: dict[str, Record] = {}
        self._by_item: dict[tuple[int, int], Record] = {}

    def record(self, query: Query, answer: Answer, item: tuple[int, int] | None = None) -> str:
        """Records a decision, and returns its id; the query is kept, so it has no identity and no tenant."""
        number = self._count
        self._count = number + 1
        slot = number % CAPACITY
        oldest = self._records[slot]
        if oldest is not None:
            self._forget(oldest)
        decision_id = f"{self._run}-{number:x}"
        record = Record(decision_id, self._clock(), query, answer, item)
        self._records[slot] = record
        if query.request_id:
            self._by_request[query.request_id] = record
        if item is not None:
            self._by_item[item] = record
        return decision_id

    def finish(self, report: FinishReport, stream: int) -> Record | None:
        """Adds the end of a request to its decision, and returns that; None if it is not known any more.

        Args:
            report: what the worker says. Found by its decision id, else by its `seq` on the stream.
            stream: number of the stream that it came by.
        """
        record = (
            self.find_by_id(report.decision_id)
            if report.decision_id
            else self._by_item.get((stream, report.seq))
        )
        if record is not None:
            record.finish = report
        return record

    def find_by_id(self, decision_id: str) -> Record | None:
        """Returns the decision of that id."""
        _, _, digits = decision_id.partition("-")
        try:
            record = self._records[int(digits, 16) % CAPACITY]
        except ValueError:
            return None
        return record if record is not None and record.decision_id == decision_id else None

    def find_by_request(self, request_id: str) -> Record | None:
        """Returns the newest decision about that request."""
        return self._by_request.get(request_id)

    def _forget(self, record: Record) -> None:
        request_id = record.query.request_id
        if self._by_request.get(request_id) is record:
            del self._by_request[request_id]
        if record.item is not None and self._by_item.get(record.item) is record:
            del self._by_item[record.item]
