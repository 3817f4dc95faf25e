"""A context engine: attention-DP ranks that step together, each with a prefix cache of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from bench.affinity.clock import on_grid
from bench.affinity.parameter import Parameters
from bench.affinity.prompt import Prompt
from bench.placement.engine import KvCache
from bench.placement.request import BLOCK_TOKENS
from bench.placement.rule import build_router
from examples.fake_engine.router import AdpRouter, KvCacheAwareRouter, Loads, RoutableRequest

KV_AWARE = "kv_aware"


@dataclass(slots=True, eq=False)
class Prefill:
    """One prompt at an engine.

    Attributes:
        prompt: what is computed.
        conversation_id: the id attached to the request; None for none.
        scheduling_params: the engine's `SchedulingParams`, or None.
        done: succeeds when the prompt is computed.
        rank: where it ran.
        cached_tokens: found in that rank's KV cache.
        left_tokens: still to compute.
    """

    prompt: Prompt
    conversation_id: str | None
    scheduling_params: Any
    done: simpy.Event
    rank: int = -1
    cached_tokens: int = 0
    left_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What the ranks computed together, in tokens."""

    at_s: float
    tokens: tuple[int, ...]


def build_engine_router(name: str, match: Any) -> AdpRouter:
    """Returns an engine's router: one of `bench.placement.rule`, or `kv_aware`."""
    return KvCacheAwareRouter(match) if name == KV_AWARE else build_router(name)


def match_tokens(cache: KvCache, prompt: Sequence[int]) -> int:
    """Returns how many tokens of a prompt a cache holds; the last one is always computed."""
    blocks = prompt.blocks if isinstance(prompt, Prompt) else ()
    return min(cache.match(blocks) * BLOCK_TOKENS, len(prompt) - 1)


class ContextEngine:
    """Takes prompts and computes them, a chunk of each rank's queue in every step.

    Args:
        env: the simulated time.
        parameters: size and speed.
        router: name of the engine's router.

    Attributes:
        steps: what was computed when.
    """

    def __init__(self, env: simpy.Environment, parameters: Parameters, router: str) -> None:
        ranks = range(parameters.context_ranks)
        self.steps: list[Step] = []
        self._env = env
        self._parameters = parameters
        self._caches = [KvCache(parameters.kv_tokens) for _ in ranks]
        self._router = build_engine_router(
            router, lambda rank, prompt: match_tokens(self._caches[rank], prompt)
        )
        self._active: list[deque[Prefill]] = [deque() for _ in ranks]
        self._waiting: deque[Prefill] = deque()
        self._absorbed_tokens = [0 for _ in ranks]
        self._arrival = env.event()
        env.process(self._run())

    def submit(self, prefill: Prefill) -> None:
        """Takes a prompt into the queue."""
        self._waiting.append(prefill)
        if not self._arrival.triggered:
            self._arrival.succeed()

    def absorb(self, prefill: Prefill) -> None:
        """Places a prompt from before the simulation and keeps its blocks; it takes no time.

        The router sees the tokens absorbed so far as load, so that it spreads what it balances.
        """
        none = [0] * len(self._absorbed_tokens)
        self._route([prefill], Loads(none, list(self._absorbed_tokens), self._parameters.context_max_active))
        self._absorbed_tokens[prefill.rank] += prefill.left_tokens
        self._caches[prefill.rank].store(prefill.prompt.blocks)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        parameters = self._parameters
        while True:
            self._admit()
            if not any(self._active):
                self._arrival = self._env.event()
                yield self._arrival
                continue
            computed = [self._compute(active) for active in self._active]
            tokens = tuple(count for count, _ in computed)
            self.steps.append(Step(float(self._env.now), tokens))
            step_s = parameters.context_step_s + max(tokens) / parameters.context_tokens_per_s
            yield self._env.timeout(on_grid(step_s))
            for rank, (_, finished) in enumerate(computed):
                for prefill in finished:
                    self._caches[rank].store(prefill.prompt.blocks)
                    prefill.done.succeed()

    def _admit(self) -> None:
        loads = Loads(
            [len(active) for active in self._active],
            [sum(prefill.left_tokens for prefill in active) for active in self._active],
            self._parameters.context_max_active,
        )
        batch = self._take_batch(loads.active_requests)
        if batch:
            self._route(batch, loads)
            for prefill in batch:
                self._active[prefill.rank].append(prefill)

    def _route(self, batch: Sequence[Prefill], loads: Loads) -> None:
        routable = [
            RoutableRequest(
                request_id=number,
                token_ids=prefill.prompt,
                conversation_id=prefill.conversation_id,
                scheduling_params=prefill.scheduling_params,
            )
            for number, prefill in enumerate(batch)
        ]
        for rank, placed in self._router.route(routable, loads).items():
            for entry in placed:
                prefill = batch[entry.request_id]
                prefill.rank = rank
                prefill.cached_tokens = match_tokens(self._caches[rank], prefill.prompt)
                prefill.left_tokens = len(prefill.prompt) - prefill.cached_tokens

    def _take_batch(self, active: Sequence[int]) -> list[Prefill]:
        """Takes what may be placed now; a request that insists on a full rank goes on waiting."""
        claimed, cap = list(active), self._parameters.context_max_active
        room = cap * len(claimed) - sum(claimed)
        batch: list[Prefill] = []
        kept: deque[Prefill] = deque()
        for prefill in self._waiting:
            params = prefill.scheduling_params
            rank = getattr(params, "attention_dp_rank", None)
            if rank is not None and not params.attention_dp_relax:
                if claimed[rank] >= cap:
                    kept.append(prefill)
                    continue
                claimed[rank] += 1
            (batch if len(batch) < room else kept).append(prefill)
        self._waiting = kept
        return batch

    def _compute(self, active: deque[Prefill]) -> tuple[int, list[Prefill]]:
        """Takes one step's chunk off a rank's queue; returns its tokens and what is finished by it."""
        chunk_tokens = left = self._parameters.chunk_tokens
        finished = []
        while active and left:
            tokens = min(left, active[0].left_tokens)
            active[0].left_tokens -= tokens
            left -= tokens
            if active[0].left_tokens == 0:
                finished.append(active.popleft())
        return chunk_tokens - left, finished
