"""The engine's loop: collects requests, places them in batches, remembers what each rank has cached."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.fake_engine.prefix_cache import Block, PrefixCache
from examples.fake_engine.router import AdpRouter, Loads, RoutableRequest


class EngineDeadError(RuntimeError):
    """The engine's loop died; its cause is what killed it. Every request fails from then on."""


MAX_KV_EVENTS = 100_000


@dataclass(slots=True, kw_only=True, eq=False)
class EngineCall:
    """One recorded call of `generate_async`.

    Attributes:
        kwargs: The keywords exactly as they were passed; the objects themselves, not copies.
        conversation_id: The attached id, whatever the dialect. None: no id.
        rank: The attention-DP rank that got it. None: not placed yet.
        cached_tokens: Prompt tokens found in that rank's cache. None: not placed yet.
    """

    request_id: int
    token_ids: Sequence[int]
    kwargs: dict[str, Any]
    conversation_id: str | None
    rank: int | None = None
    cached_tokens: int | None = None
    finished: bool = False
    aborted: bool = False

    def as_routable(self) -> RoutableRequest:
        """The call as a router sees it."""
        return RoutableRequest(
            request_id=self.request_id,
            token_ids=self.token_ids,
            conversation_id=self.conversation_id,
            scheduling_params=self.kwargs.get("scheduling_params"),
        )


@dataclass(slots=True)
class _Rank:
    cache: PrefixCache = field(default_factory=PrefixCache)
    active: dict[int, int] = field(default_factory=dict)  # request id -> prompt tokens
    event_ids: itertools.count[int] = field(default_factory=itertools.count)


class Scheduler:
    """Runs the ranks of one engine.

    Args:
        dp_size: Number of ranks; a single one has no router, its requests' ranks are ignored.
        max_active: Hard cap of requests per rank.
        reuse: Whether prefixes stay cached after a request.
        build_router: Makes the router, given a function that counts the tokens of a prompt that a
            rank has cached.

    Attributes:
        kv_events: What changed in the ranks' caches, in the shape of `LLM.get_kv_cache_events`.
    """

    def __init__(
        self,
        dp_size: int,
        max_active: int,
        reuse: bool,
        build_router: Callable[[Callable[[int, Sequence[int]], int]], AdpRouter],
    ) -> None:
        self._ranks = [_Rank() for _ in range(dp_size)]
        self._max_active = max_active
        self._reuse = reuse
        self._router = build_router(lambda rank, token_ids: self._ranks[rank].cache.match(token_ids))
        self.kv_events: deque[dict[str, Any]] = deque(maxlen=MAX_KV_EVENTS)
        self._waiting: dict[int, EngineCall] = {}
        self._changed = asyncio.Event()
        self._death: Exception | None = None

    def enqueue(self, call: EngineCall) -> None:
        """Take a request into the queue.

        Raises:
            EngineDeadError: The engine died before.
        """
        self.raise_if_dead()
        self._waiting[call.request_id] = call

    async def wait_until_placed(self, call: EngineCall) -> None:
        """Wait until the request has a rank or is aborted.

        Raises:
            EngineDeadError: The engine died.
        """
        await asyncio.sleep(0)  # whatever is enqueued in this turn of the event loop makes one batch
        while call.rank is None and not call.aborted:
            self._changed.clear()
            self.step()
            if call.rank is None:
                await self._changed.wait()
        self.raise_if_dead()

    def step(self) -> None:
        """Place every waiting request that may be placed, as one batch.

        A request that insists on a full rank goes on waiting.

        Raises:
            EngineDeadError: The engine died, in this step or before. In this step: of what its
                router raised, see `AdpRouter.route`.
        """
        self.raise_if_dead()
        try:
            self._place_waiting()
        except (TypeError, IndexError, KeyError) as error:
            self._death = error
            self._changed.set()
            self.raise_if_dead()

    def finish(self, call: EngineCall, generated: Sequence[int] = ()) -> None:
        """Take a request off its rank, or out of the queue; its tokens stay cached."""
        self._waiting.pop(call.request_id, None)
        if call.rank is not None:
            rank = self._ranks[call.rank]
            rank.active.pop(call.request_id, None)
            if generated and self._reuse:
                salt = call.kwargs.get("cache_salt")
                blocks = rank.cache.store([*call.token_ids, *generated], salt)
                if blocks:
                    event_id = next(rank.event_ids)
                    self.kv_events.append(_stored_event(event_id, call.rank, blocks, salt))
        self._changed.set()

    def raise_if_dead(self) -> None:
        """Raise EngineDeadError if the engine died."""
        if self._death is not None:
            raise EngineDeadError("the engine's loop died") from self._death

    def _place_waiting(self) -> None:
        loads = Loads(
            [len(rank.active) for rank in self._ranks],
            [sum(rank.active.values()) for rank in self._ranks],
            self._max_active,
        )
        batch = [call.as_routable() for call in self._select_batch(list(loads.active_requests))]
        if not batch:
            return
        placements = self._router.route(batch, loads) if len(self._ranks) > 1 else {0: batch}
        for number, requests in placements.items():
            rank = self._ranks[number]
            for request in requests:
                call = self._waiting.pop(request.request_id)
                call.rank = number
                call.cached_tokens = rank.cache.match(call.token_ids, call.kwargs.get("cache_salt"))
                rank.active[call.request_id] = len(call.token_ids)
        self._changed.set()

    def _select_batch(self, claimed: list[int]) -> list[EngineCall]:
        n_free = self._max_active * len(claimed) - sum(claimed)
        batch: list[EngineCall] = []
        for call in self._waiting.values():
            request = call.as_routable()
            rank = request.explicit_rank
            if len(batch) >= n_free:
                break
            if rank is not None and not request.relax and len(claimed) > 1:
                if claimed[rank] >= self._max_active:
                    continue
                claimed[rank] += 1
            batch.append(call)
        return batch


def _stored_event(event_id: int, rank: int, blocks: Sequence[Block], salt: str | None) -> dict[str, Any]:
    namespace = {} if salt is None else {"cache_salt": salt}
    return {
        "event_id": event_id,
        "attention_dp_rank": rank,
        "data": {
            "type": "stored",
            "parent_hash": blocks[0].parent_key,
            "blocks": [
                {
                    "block_hash": block.key,
                    "tokens": [{"token_id": token_id, "token_extra_id": 0} for token_id in block.token_ids],
                    **namespace,
                }
                for block in blocks
            ],
        },
    }
