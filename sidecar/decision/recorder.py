"""The last decisions and what became of them, in memory that does not grow."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.model import Applied, Decision, FinishReport, Request

CAPACITY = 4_096


@dataclass(slots=True)
class Record:
    """One decision."""

    decision_id: str
    decided_at: float
    """Seconds since the epoch."""
    request: Request
    """Without identity and tenant."""
    decision: Decision
    item: tuple[int, int] | None
    """Stream and `seq` of the item; None for a unary call."""
    applied: Applied | None = None
    """What the client applied before; None if it waited."""
    unchanged: bool = False
    """Whether that equals the decision."""
    finish: FinishReport | None = None


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

    @property
    def count(self) -> int:
        """Decisions so far; the number of the next one."""
        return self._count

    def is_since(self, decision_id: str, number: int) -> bool:
        """Returns whether a decision was recorded in this run of the sidecar, at or after a number."""
        run, _, digits = decision_id.partition("-")
        try:
            return run == self._run and number <= int(digits, 16) < self._count
        except ValueError:
            return False

    def record(
        self,
        request: Request,
        decision: Decision,
        item: tuple[int, int] | None = None,
        applied: Applied | None = None,
        *,
        unchanged: bool = False,
    ) -> str:
        """Records a decision about a request without its identity, and returns the decision's id."""
        if request.tenant:
            # Thousands of 16 KiB would be 64 MiB.
            request = request._replace(tenant="")
        number = self._count
        self._count = number + 1
        slot = number % CAPACITY
        oldest = self._records[slot]
        if oldest is not None:
            self._forget(oldest)
        decision_id = f"{self._run}-{number:x}"
        record = Record(decision_id, self._clock(), request, decision, item, applied, unchanged)
        self._records[slot] = record
        if request.request_id:
            self._by_request[request.request_id] = record
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
        request_id = record.request.request_id
        if self._by_request.get(request_id) is record:
            del self._by_request[request_id]
        if record.item is not None and self._by_item.get(record.item) is record:
            del self._by_item[record.item]
