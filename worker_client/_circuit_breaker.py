"""Circuit breaker for an unresponsive sidecar; logs once per outage."""

from __future__ import annotations

from worker_client._once_logger import OnceLogger

_PROBE_INTERVAL_S = 1.0


class CircuitBreaker:
    """Tracks the time since the first request that was written after the sidecar's last message.

    Times are those of the event loop, in seconds.
    """

    def __init__(self, once_logger: OnceLogger, timeout_s: float) -> None:
        self._once_logger = once_logger
        self._timeout_s = timeout_s
        self._waiting_since_s: float | None = None
        self._next_probe_s = 0.0
        self._is_logged = False

    def is_unresponsive(self, now_s: float) -> bool:
        """Returns whether the breaker is open: nothing was received for longer than any request waits.

        While it is open requests do not wait for the sidecar, except for one probe a second, for which this
        returns False. Any message of the sidecar closes it.
        """
        if self._waiting_since_s is None or now_s - self._waiting_since_s <= self._timeout_s:
            return False
        if now_s >= self._next_probe_s:
            self._next_probe_s = now_s + _PROBE_INTERVAL_S
            return False
        return True

    def record_written(self, now_s: float) -> None:
        """Records that requests are handed to the connection."""
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def record_nothing_pending(self) -> None:
        """Records that no request is waiting."""
        self._waiting_since_s = None

    def record_response(self) -> None:
        """Records a message of the sidecar; ends an outage."""
        self._waiting_since_s = None
        if self._is_logged:
            self._is_logged = False
            self._once_logger.log_recovery()

    def log_once(self, reason: str) -> None:
        """Logs that the sidecar is unavailable, unless this outage was logged already."""
        if not self._is_logged:
            self._is_logged = True
            self._once_logger.log_unavailable(reason)
