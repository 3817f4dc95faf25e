"""How the engine's attention-DP routers place requests, by their published rules.

The rules are those of `tensorrt_llm/_torch/pyexecutor/scheduler/adp_router.py`: a batch is sorted by
`attention_dp_relax`, explicit ranks are served first, what remains goes by the router's own rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FAIR_SHARE_MULTIPLIER = 2  # the engine's default slack of the soft cap


@dataclass(slots=True, kw_only=True)
class RoutableRequest:
    """What a router sees of a request; `conversation_id` is None where none is attached."""

    request_id: int
    token_ids: Sequence[int]
    conversation_id: str | None
    scheduling_params: Any

    @property
    def explicit_rank(self) -> int | None:
        """The rank that the caller requested."""
        if self.scheduling_params is None:
            return None
        rank: int | None = self.scheduling_params.attention_dp_rank
        return rank

    @property
    def relax(self) -> bool | None:
        """Whether another rank will do; no scheduling parameters at all count as True."""
        if self.scheduling_params is None:
            return True
        relax: bool | None = self.scheduling_params.attention_dp_relax
        return relax

    @property
    def parent_id(self) -> str | None:
        """The conversation near which to place a new one, where the release has that parameter."""
        return getattr(self.scheduling_params, "subagent_affinity_id", None)


@dataclass(slots=True)
class Loads:
    """Load per rank, updated while a batch is placed; `max_active` is the hard cap per rank."""

    active_requests: list[int]
    active_tokens: list[int]
    max_active: int

    def has_room(self, rank: int) -> bool:
        """Whether the rank is under the hard cap.

        Like the real router it does not check bounds.

        Raises:
            IndexError: There is no such rank.
        """
        return self.active_requests[rank] < self.max_active

    def soft_cap(self, n_new: int, multiplier: int = 1) -> int:
        """The number of requests that a rank should not exceed by balancing."""
        n_ranks = len(self.active_requests)
        fair_share = -(-(sum(self.active_requests) + n_new) // n_ranks)
        return min(max(multiplier * fair_share, *self.active_requests), self.max_active)

    def least_loaded(self, cap: int) -> int:
        """The rank with the fewest tokens among those under the cap, else among all."""
        ranks = range(len(self.active_requests))
        open_ranks = [rank for rank in ranks if self.active_requests[rank] < cap] or list(ranks)
        return min(open_ranks, key=lambda rank: (self.active_tokens[rank], self.active_requests[rank], rank))


Placements = dict[int, list[RoutableRequest]]


class AdpRouter(Protocol):
    """Places one batch."""

    def route(self, batch: Sequence[RoutableRequest], loads: Loads) -> Placements:
        """Give every request of the batch a rank.

        Raises:
            TypeError: Two or more requests cannot be sorted because a relax is None.
            IndexError: An explicit rank is past the last one.
            KeyError: An explicit rank is negative.
        """


def place(request: RoutableRequest, rank: int, loads: Loads, placements: Placements) -> None:
    """Book the request on the rank."""
    loads.active_requests[rank] += 1
    loads.active_tokens[rank] += len(request.token_ids)
    placements[rank].append(request)


def place_explicit(
    batch: Sequence[RoutableRequest],
    loads: Loads,
    placements: Placements,
    is_placed_otherwise: Callable[[RoutableRequest], bool] = lambda request: False,
) -> list[RoutableRequest]:
    """Place the requests whose explicit rank has room, strict ones first; give back the rest."""
    rest = []
    for request in sorted(batch, key=lambda request: request.relax):  # type: ignore[arg-type,return-value]
        rank = request.explicit_rank
        if rank is not None and not is_placed_otherwise(request) and loads.has_room(rank):
            place(request, rank, loads, placements)
        else:
            rest.append(request)
    return rest


class DefaultRouter:
    """Balances; pins nothing. Also what an engine does whose conversation flag has no effect."""

    def route(self, batch: Sequence[RoutableRequest], loads: Loads) -> Placements:
        """See `AdpRouter.route`."""
        placements: Placements = {rank: [] for rank in range(len(loads.active_requests))}
        rest = place_explicit(batch, loads, placements)
        cap = loads.soft_cap(len(rest))
        for request in sorted(rest, key=lambda request: -len(request.token_ids)):
            place(request, loads.least_loaded(cap), loads, placements)
        return placements


class KvCacheAwareRouter:
    """Places where the most tokens must not be computed again; an explicit rank bypasses that.

    Args:
        match: Number of tokens of a prompt that a rank has in its cache.
    """

    MATCH_RATE_THRESHOLD = 0.1  # below it, load alone decides

    def __init__(self, match: Callable[[int, Sequence[int]], int]) -> None:
        self._match = match

    def route(self, batch: Sequence[RoutableRequest], loads: Loads) -> Placements:
        """See `AdpRouter.route`."""
        ranks = range(len(loads.active_requests))
        placements: Placements = {rank: [] for rank in ranks}
        rest = place_explicit(batch, loads, placements)
        cap = loads.soft_cap(len(rest), FAIR_SHARE_MULTIPLIER)
        for request in rest:
            matches = {rank: self._match(rank, request.token_ids) for rank in ranks}
            open_ranks = [rank for rank in ranks if loads.active_requests[rank] < cap]
            best = max(open_ranks, key=lambda rank: (matches[rank], -loads.active_tokens[rank], -rank))
            if matches[best] <= self.MATCH_RATE_THRESHOLD * len(request.token_ids):
                best = loads.least_loaded(cap)
            place(request, best, loads, placements)
        return placements


class ConversationRouter:
    """Returns a conversation to the rank of its first turn (`ConversationAwareADPRouter`).

    First turns go round robin under a soft cap, later ones to their rank up to the hard cap; a full
    rank overflows without losing the binding. The least recently used conversation is forgotten first.

    Args:
        max_sessions: Conversations remembered.
        records_first_rank: With NVIDIA/TensorRT-LLM#16815 an explicit rank of a new conversation
            becomes its binding and a bound conversation ignores one; before, an explicit rank is
            honored first and not remembered.
    """

    def __init__(self, max_sessions: int, records_first_rank: bool) -> None:
        self._max_sessions = max_sessions
        self._records_first_rank = records_first_rank
        self._ranks: OrderedDict[str, int] = OrderedDict()
        self._cursor = 0

    def route(self, batch: Sequence[RoutableRequest], loads: Loads) -> Placements:
        """See `AdpRouter.route`."""
        placements: Placements = {rank: [] for rank in range(len(loads.active_requests))}
        rest = place_explicit(batch, loads, placements, self._is_bound_for_good)
        if self._records_first_rank:
            for rank, requests in placements.items():
                for request in requests:
                    self._bind_if_new(request.conversation_id, rank)
        cap = loads.soft_cap(len(rest), FAIR_SHARE_MULTIPLIER)
        for request in rest:
            place(request, self._choose(request, cap, loads), loads, placements)
        return placements

    def _is_bound_for_good(self, request: RoutableRequest) -> bool:
        return self._records_first_rank and request.conversation_id in self._ranks

    def _choose(self, request: RoutableRequest, cap: int, loads: Loads) -> int:
        conversation_id = request.conversation_id
        for key in (conversation_id, request.parent_id):
            bound = self._ranks.get(key) if key else None
            if key and bound is not None and loads.has_room(bound):
                self._ranks.move_to_end(key)
                self._bind_if_new(conversation_id, bound)
                return bound
        rank = self._next_round_robin(cap, loads)
        if not (self._records_first_rank and request.explicit_rank is not None):
            self._bind_if_new(conversation_id, rank)
        return rank

    def _next_round_robin(self, cap: int, loads: Loads) -> int:
        n_ranks = len(loads.active_requests)
        for _ in range(n_ranks):
            rank, self._cursor = self._cursor, (self._cursor + 1) % n_ranks
            if loads.active_requests[rank] < cap:
                return rank
        return loads.least_loaded(cap)

    def _bind_if_new(self, conversation_id: str | None, rank: int) -> None:
        if conversation_id and conversation_id not in self._ranks:
            self._ranks[conversation_id] = rank
            while len(self._ranks) > self._max_sessions:
                self._ranks.popitem(last=False)
