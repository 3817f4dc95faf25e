"""Whether an engine follows the ranks that it is sent."""

from __future__ import annotations

from collections import deque

WINDOW = 200
MAX_ELSEWHERE = 10
"""5 % of the window. A few are normal: an engine lets a full rank overflow."""
COOL_DOWN_S = 60.0


class ComplianceMonitor:
    """Watches where placed requests really ran, and pauses placement when too many ran elsewhere."""

    __slots__ = ("_elsewhere", "_results", "_resumes_at_s")

    def __init__(self) -> None:
        self._results: deque[bool] = deque(maxlen=WINDOW)
        self._elsewhere = 0
        self._resumes_at_s = float("-inf")

    def is_paused(self, now_s: float) -> bool:
        """Whether nothing is to be placed for now."""
        return now_s < self._resumes_at_s

    def observe(self, placed_at_s: float, *, as_placed: bool, now_s: float) -> bool:
        """Takes where one placed request ran; returns whether that begins a pause.

        Args:
            placed_at_s: when it was placed; what was placed before a pause says nothing after it.
            as_placed: whether it ran on the rank that was sent.
            now_s: the present time.
        """
        if placed_at_s < self._resumes_at_s:
            return False
        if len(self._results) == WINDOW and not self._results[0]:
            self._elsewhere -= 1
        self._results.append(as_placed)
        self._elsewhere += not as_placed
        if self._elsewhere <= MAX_ELSEWHERE:
            return False
        self._results.clear()
        self._elsewhere = 0
        self._resumes_at_s = now_s + COOL_DOWN_S
        return True
