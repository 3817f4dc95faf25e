"""What each rank of one engine has to compute and to keep, in tokens."""

from __future__ import annotations

RESIDENT_HALF_LIFE_S = 600.0
"""After so long without a request, half of a conversation's tokens count as evicted or not coming back."""


def decay(tokens: float, idle_s: float) -> float:
    """Returns how many of a conversation's tokens likely still count after it was idle for so long."""
    return tokens * 0.5 ** (idle_s / RESIDENT_HALF_LIFE_S) if idle_s > 0 else tokens


class RankLoads:
    """The load of every rank.

    All conversations decay at one rate, so a rank's sum decays as they do and needs no walk over them.

    Args:
        dp_size: number of ranks.
        now_s: the present time.
    """

    __slots__ = ("_bound", "_decayed_at_s", "_in_flight", "_outstanding", "_resident")

    def __init__(self, dp_size: int, now_s: float) -> None:
        self._in_flight = [0] * dp_size
        self._outstanding = [0] * dp_size
        self._resident = [0.0] * dp_size
        self._bound = [0] * dp_size
        self._decayed_at_s = now_s

    @property
    def dp_size(self) -> int:
        """Number of ranks."""
        return len(self._outstanding)

    @property
    def conversations(self) -> int:
        """Number of conversations bound to any rank."""
        return sum(self._bound)

    @property
    def requests_in_flight(self) -> list[int]:
        """By rank, the requests in flight that were placed there."""
        return list(self._in_flight)

    @property
    def outstanding_tokens(self) -> list[int]:
        """By rank, the tokens that requests in flight have yet to compute there."""
        return list(self._outstanding)

    def resident_tokens(self, now_s: float) -> list[float]:
        """Returns, by rank, the tokens that its conversations likely keep in its KV cache."""
        return [decay(tokens, now_s - self._decayed_at_s) for tokens in self._resident]

    def find_least_loaded(self, now_s: float, resident_weight: float) -> list[int]:
        """Returns the ranks that share the least load.

        Args:
            now_s: the present time.
            resident_weight: tokens of outstanding work that one resident token weighs as much as.
        """
        weight = decay(resident_weight, now_s - self._decayed_at_s)
        loads = [new + weight * kept for new, kept in zip(self._outstanding, self._resident, strict=True)]
        least = min(loads)
        return [rank for rank, load in enumerate(loads) if load == least]

    def start_work(self, rank: int, tokens: int) -> None:
        """Adds a request and what it has yet to compute."""
        self._in_flight[rank] += 1
        self._outstanding[rank] += tokens

    def end_work(self, rank: int, tokens: int) -> None:
        """Takes off what `start_work` added."""
        self._in_flight[rank] -= 1
        self._outstanding[rank] -= tokens

    def bind(self, rank: int, tokens: float, now_s: float) -> None:
        """Adds a conversation that keeps so many tokens."""
        self._decay_all(now_s)
        self._bound[rank] += 1
        self._resident[rank] += tokens

    def unbind(self, rank: int, tokens: float, now_s: float) -> None:
        """Takes off a conversation that keeps, by now, so many tokens."""
        self._decay_all(now_s)
        self._bound[rank] -= 1
        # The last one takes along what rounding left.
        left = self._resident[rank] - tokens if self._bound[rank] else 0.0
        self._resident[rank] = max(left, 0.0)

    def _decay_all(self, now_s: float) -> None:
        if now_s > self._decayed_at_s:
            self._resident = self.resident_tokens(now_s)
            self._decayed_at_s = now_s
