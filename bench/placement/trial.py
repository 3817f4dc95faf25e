"""One contender on one workload with one seed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import simpy

from bench.placement.contender import Contender, Placer
from bench.placement.engine import Engine
from bench.placement.request import Request
from bench.placement.rule import build_router
from bench.placement.workload import AgentWorkload, TraceWorkload

Workload: TypeAlias = AgentWorkload | TraceWorkload


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial, after its warm-up.

    Attributes:
        cached_share: prompt tokens found in a KV cache, of all.
        ttft_s: 50th, 95th and 99th percentile of the time from arrival to the end of the prompt.
        skew: work of each step's busiest rank, of an even share; what lock-step waits for.
        moves: turns on another rank than the turn before, per conversation.
        requests: how many were counted.
    """

    cached_share: float
    ttft_s: tuple[float, float, float]
    skew: float
    moves: float
    requests: int


class Trial:
    """Runs one simulation."""

    def __init__(self, workload: Workload, contender: Contender, seed: int) -> None:
        self._env = simpy.Environment()
        self._workload = workload
        shape = workload.engine
        self._engine = Engine(self._env, shape, build_router(contender.router), workload.warm_up_s)
        self._placer = (
            Placer(self._env, contender.settings, shape) if contender.settings is not None else None
        )
        self._seed = seed
        self._done: list[tuple[float, int, int]] = []
        self._last_rank: dict[str, int] = {}
        self._moves = 0

    def run(self) -> Outcome:
        """Returns what came of it."""
        self._workload.start(self._env, self._serve, self._seed)
        self._env.run(until=self._workload.duration_s)
        ttft_s, prompt_tokens, cached_tokens = map(np.array, zip(*self._done, strict=True))
        work, ranks = self._engine.work, self._workload.engine.ranks
        p50, p95, p99 = np.percentile(ttft_s, [50, 95, 99])
        return Outcome(
            cached_share=float(cached_tokens.sum() / prompt_tokens.sum()),
            ttft_s=(float(p50), float(p95), float(p99)),
            skew=work.busiest_tokens * ranks / work.total_tokens,
            moves=self._moves / len(self._last_rank),
            requests=len(self._done),
        )

    def _serve(self, request: Request) -> Generator[simpy.Event, Any, None]:
        decision_id = self._placer.place(request) if self._placer is not None else ""
        self._engine.submit(request)
        yield request.done
        if decision_id and self._placer is not None:
            self._placer.finish(request, decision_id)
        before = self._last_rank.get(request.conversation, request.rank)
        self._last_rank[request.conversation] = request.rank
        if request.arrived_s >= self._workload.warm_up_s:
            self._moves += before != request.rank
            ttft_s = self._env.now - request.arrived_s
            self._done.append((ttft_s, request.prompt_tokens, request.cached_tokens))
