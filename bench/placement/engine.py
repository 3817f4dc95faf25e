"""A context engine whose attention-DP ranks step together.

In each step every rank computes up to a chunk of prompt tokens, first come first served, and the step lasts
as long as that of the busiest rank. New requests are given to ranks at the beginning of a step, as one batch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from bench.placement.request import BLOCK_TOKENS, Blocks, Request
from examples.fake_engine.router import AdpRouter, Loads, RoutableRequest


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The engine's size and speed; round figures, of no particular machine."""

    ranks: int = 4
    kv_tokens: int = 16_000_000
    """Of one rank."""
    chunk_tokens: int = 8_192
    max_active: int = 64
    step_s: float = 0.02
    tokens_per_s: float = 20_000.0


class KvCache:
    """One rank's blocks, the one used longest ago out first; of a prompt the tail goes before the head."""

    def __init__(self, max_tokens: int) -> None:
        self._max_blocks = max_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Blocks) -> int:
        """Returns how many leading blocks are here."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def store(self, blocks: Blocks) -> None:
        """Keeps a prompt's blocks."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Scheduling:
    attention_dp_rank: int
    attention_dp_relax: bool = True


@dataclass(slots=True)
class Work:
    """What the ranks computed from some time on.

    Attributes:
        total_tokens: by all ranks.
        busiest_tokens: by each step's busiest rank.
    """

    total_tokens: int = 0
    busiest_tokens: int = 0


class OverfullRankError(Exception):
    """A router put more on a rank than its hard cap allows, which no engine does."""


class Engine:
    """Takes requests and computes them.

    Args:
        env: the simulated time.
        shape: its size and speed.
        router: places each batch.
        warm_up_s: work before does not count.
    """

    def __init__(
        self, env: simpy.Environment, shape: EngineShape, router: AdpRouter, warm_up_s: float
    ) -> None:
        self.work = Work()
        self._env = env
        self._shape = shape
        self._router = router
        self._warm_up_s = warm_up_s
        self._caches = [KvCache(shape.kv_tokens) for _ in range(shape.ranks)]
        self._active: list[deque[Request]] = [deque() for _ in range(shape.ranks)]
        self._waiting: deque[Request] = deque()
        self._arrival = env.event()
        env.process(self._run())

    def submit(self, request: Request) -> None:
        """Takes a request into the queue."""
        self._waiting.append(request)
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            self._admit()
            if not any(self._active):
                self._arrival = self._env.event()
                yield self._arrival
                continue
            computed = [self._compute(rank) for rank in range(self._shape.ranks)]
            busiest = max(tokens for tokens, _ in computed)
            if self._env.now >= self._warm_up_s:
                self.work.total_tokens += sum(tokens for tokens, _ in computed)
                self.work.busiest_tokens += busiest
            yield self._env.timeout(self._shape.step_s + busiest / self._shape.tokens_per_s)
            for rank, (_, finished) in enumerate(computed):
                for request in finished:
                    self._caches[rank].store(request.blocks)
                    request.done.succeed()

    def _admit(self) -> None:
        # The routers see whole prompts of active requests, cached or not: `create_rank_state` in the public
        # TensorRT-LLM sums up `py_orig_prompt_len`.
        loads = Loads(
            [len(active) for active in self._active],
            [sum(request.prompt_tokens for request in active) for active in self._active],
            self._shape.max_active,
        )
        room = self._shape.max_active * self._shape.ranks - sum(loads.active_requests)
        batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if not batch:
            return
        routable = [
            RoutableRequest(
                request_id=number,
                token_ids=range(request.prompt_tokens),
                conversation_id=request.conversation,
                scheduling_params=None if request.rank_hint is None else _Scheduling(request.rank_hint),
            )
            for number, request in enumerate(batch)
        ]
        for rank, placed in self._router.route(routable, loads).items():
            for entry in placed:
                self._start(batch[entry.request_id], rank)

    def _start(self, request: Request, rank: int) -> None:
        if len(self._active[rank]) >= self._shape.max_active:
            raise OverfullRankError(f"rank {rank} has {self._shape.max_active} requests already")
        cached = min(self._caches[rank].match(request.blocks) * BLOCK_TOKENS, request.prompt_tokens - 1)
        request.rank, request.cached_tokens = rank, cached
        request.left_tokens = request.prompt_tokens - cached
        self._active[rank].append(request)

    def _compute(self, rank: int) -> tuple[int, list[Request]]:
        """Takes one step's chunk off a rank's queue; returns its tokens and what is finished by it."""
        left, finished, active = self._shape.chunk_tokens, [], self._active[rank]
        while active and left:
            tokens = min(left, active[0].left_tokens)
            active[0].left_tokens -= tokens
            left -= tokens
            if active[0].left_tokens == 0:
                finished.append(active.popleft())
        return self._shape.chunk_tokens - left, finished
