"""Whether the sidecar is heard: when to stop waiting for it, and saying so once per episode."""

from __future__ import annotations

from worker_client._once_logger import Announcer

_PROBE_INTERVAL_S = 1.0


class Silence:
    """Follows the time since the first question after which nothing was heard.

    Times are those of the event loop, in seconds.
    """

    def __init__(self, announcer: Announcer, longest_wait_s: float) -> None:
        self._announcer = announcer
        self._longest_wait_s = longest_wait_s
        self._first_unheard_s: float | None = None
        self._next_probe_s = 0.0
        self._is_announced = False

    def is_unresponsive(self, now_s: float) -> bool:
        """Returns whether nothing was heard since a question for longer than anybody would wait.

        Then waiting again with each request would only add up, so all but one question a second go
        unasked until the sidecar is heard again.
        """
        if self._first_unheard_s is None or now_s - self._first_unheard_s <= self._longest_wait_s:
            return False
        if now_s >= self._next_probe_s:
            self._next_probe_s = now_s + _PROBE_INTERVAL_S
            return False
        return True

    def note_asked(self, now_s: float) -> None:
        """Takes note of a question."""
        if self._first_unheard_s is None:
            self._first_unheard_s = now_s

    def note_nothing_owed(self) -> None:
        """Takes note that nobody waits for anything."""
        self._first_unheard_s = None

    def note_heard(self) -> None:
        """Takes note of a word of the sidecar; ends an episode of silence."""
        self._first_unheard_s = None
        if self._is_announced:
            self._is_announced = False
            self._announcer.announce_recovery()

    def announce(self, reason: str) -> None:
        """Says that the sidecar is silent, unless this episode was announced already."""
        if not self._is_announced:
            self._is_announced = True
            self._announcer.announce_silence(reason)
