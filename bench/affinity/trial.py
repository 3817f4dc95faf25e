"""One arm on one workload with one seed: the whole topology, from the first request to the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import simpy
from structlog.testing import capture_logs

from bench.affinity.arm import Arm
from bench.affinity.bridge import Bridge
from bench.affinity.context import ContextEngine, Prefill
from bench.affinity.fleet import SidecarFleet
from bench.affinity.generation import GenerationEngine
from bench.affinity.observation import Observed, read_observations
from bench.affinity.parameter import Parameters
from bench.affinity.worker import Worker
from bench.affinity.workload import Conversation, Turn, Workload
from worker_client import Affinity, Phase

_QUANTILES = tuple(range(101))
_GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial, after its warm-up.

    Attributes:
        ttft_s: the percentiles 0 to 100 of the time from a request to its first token.
        requests_per_s: requests that completed, whenever they arrived.
        cached_share: of all prompt tokens, those found in a context rank's KV cache.
        held_share: of all prompt tokens, those that the generation rank held and that were not transferred.
        skew: work of each context step's busiest rank, of an even share; what lock-step waits for.
        moved_share: of all later turns, those that ran on another context rank than the turn before.
        requests: how many were counted.
        observed: what the workers' own metrics and logs say.
        work: tokens by rank of the first context instance in each second.
    """

    ttft_s: tuple[float, ...]
    requests_per_s: float
    cached_share: float
    held_share: float
    skew: float
    moved_share: float
    requests: int
    observed: Observed
    work: tuple[tuple[int, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Served:
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    held_tokens: int


class Trial:
    """Runs one simulation.

    Args:
        parameters: the topology.
        workload: which requests come when.
        arm: how it is served.
        seed: of everything random.
    """

    def __init__(self, parameters: Parameters, workload: Workload, arm: Arm, seed: int) -> None:
        self._parameters = parameters
        self._workload = workload
        self._arm = arm
        self._seed = seed
        self._env = simpy.Environment()
        self._bridge = Bridge(self._env)
        self._contexts = [
            ContextEngine(self._env, parameters, arm.context_router)
            for _ in range(parameters.context_instances)
        ]
        self._generation = GenerationEngine(self._env, parameters, arm.generation_router)
        self._context_workers: list[Worker] = []
        self._generation_worker: Worker
        self._living = [0] * parameters.context_instances
        self._last_rank: dict[str, tuple[int, int]] = {}
        self._started: set[Conversation] = set()
        self._returns: Counter[bool] = Counter()
        self._served: list[_Served] = []
        self._completed = 0
        self._clock_set: Any = lambda now_s: None

    async def run(self, fleet: SidecarFleet | None = None) -> Outcome:
        """Returns what came of it.

        Args:
            fleet: gives the sidecars; not needed while the arm's gate is off.

        Raises:
            RuntimeError: a sidecar did not start, or did not decide.
        """
        names = [f"context-{number}" for number in range(self._parameters.context_instances)]
        targets = dict.fromkeys([*names, _GENERATION], "unix:///nowhere")
        run = 0
        if fleet is not None and self._arm.affinity is not Affinity.OFF:
            targets = fleet.start([*names, _GENERATION], self._arm.policy)
            run = fleet.clock.begin_run()
            self._clock_set = fleet.clock.set
        parameters, arm = self._parameters, self._arm
        with capture_logs() as log:
            self._context_workers = [
                Worker(
                    name, Phase.PREFILL, parameters.context_ranks, arm.context_router, arm, targets[name], run
                )
                for name in names
            ]
            self._generation_worker = Worker(
                _GENERATION,
                Phase.DECODE,
                parameters.generation_ranks,
                arm.generation_router,
                arm,
                targets[_GENERATION],
                run,
            )
            workers = [*self._context_workers, self._generation_worker]
            self._workload.start(self._env, self, self._seed)
            try:
                await self._bridge.run(parameters.duration_s)
            finally:
                for worker in workers:
                    await worker.close()
        return self._conclude(read_observations(self._context_workers, self._generation_worker, log))

    def serve(self, turn: Turn) -> Generator[simpy.Event, Any, None]:
        """See `Service.serve`."""
        arrived_s = float(self._env.now)
        instance = self._choose_instance(turn.conversation)
        worker = self._context_workers[instance]
        plan, conversation_id, params = yield self._bridge.call(lambda: self._plan(worker, turn))
        prefill = Prefill(turn.prompt, conversation_id, params, self._env.event())
        self._contexts[instance].submit(prefill)
        yield prefill.done
        worker.finish(plan, prefill.rank, prefill.cached_tokens)
        result = (f"context-{instance}", prefill.rank, prefill.cached_tokens)
        decoder = self._generation_worker
        plan, conversation_id, params = yield self._bridge.call(lambda: self._plan(decoder, turn, result))
        first, last = self._generation.decode(turn.prompt, conversation_id, params, turn.output_tokens)
        held_tokens = yield first
        # By the time of the token and not of the request; else slow requests would be missing at the end.
        if self._env.now >= self._parameters.warm_up_s:
            ttft_s = float(self._env.now) - arrived_s
            self._served.append(_Served(ttft_s, len(turn.prompt), prefill.cached_tokens, held_tokens))
        yield last
        self._completed += self._env.now >= self._parameters.warm_up_s
        decoder.finish(plan, prefill.rank, prefill.cached_tokens)
        place = (instance, prefill.rank)
        before = self._last_rank.get(turn.conversation.name)
        self._last_rank[turn.conversation.name] = place
        if self._env.now >= self._parameters.warm_up_s and before is not None:
            self._returns[before == place] += 1

    async def _plan(self, worker: Worker, turn: Turn, prefill: tuple[str, int, int] | None = None) -> Any:
        self._clock_set(float(self._env.now))
        return await worker.plan(turn, prefill)

    def _choose_instance(self, conversation: Conversation) -> int:
        """Returns the conversation's instance; a new one goes where the fewest live."""
        if conversation.instance is None:
            conversation.instance = min(range(len(self._living)), key=lambda number: self._living[number])
        if conversation not in self._started:
            self._started.add(conversation)
            self._living[conversation.instance] += 1
        return conversation.instance

    def remember(self, turn: Turn) -> Generator[simpy.Event, Any, None]:
        """See `Service.remember`; the context phase alone, whose caches decide about the prompts."""
        instance = self._choose_instance(turn.conversation)
        worker = self._context_workers[instance]
        plan, conversation_id, params = yield self._bridge.call(lambda: self._plan(worker, turn))
        prefill = Prefill(turn.prompt, conversation_id, params, self._env.event())
        self._contexts[instance].absorb(prefill)
        worker.finish(plan, prefill.rank, prefill.cached_tokens)
        self._last_rank[turn.conversation.name] = (instance, prefill.rank)

    def forget(self, conversation: Conversation) -> None:
        """See `Service.forget`."""
        if conversation.instance is not None:
            self._living[conversation.instance] -= 1

    def _conclude(self, observed: Observed) -> Outcome:
        parameters = self._parameters
        counted_s = parameters.duration_s - parameters.warm_up_s
        steps = [
            step for engine in self._contexts for step in engine.steps if step.at_s >= parameters.warm_up_s
        ]
        busiest = sum(max(step.tokens) for step in steps)
        total = sum(sum(step.tokens) for step in steps)
        prompt_tokens = sum(served.prompt_tokens for served in self._served)
        percentiles = np.percentile([served.ttft_s for served in self._served], _QUANTILES)
        returns = sum(self._returns.values())
        return Outcome(
            ttft_s=tuple(float(value) for value in percentiles),
            requests_per_s=self._completed / counted_s,
            cached_share=sum(served.cached_tokens for served in self._served) / prompt_tokens,
            held_share=sum(served.held_tokens for served in self._served) / prompt_tokens,
            skew=busiest * parameters.context_ranks / total,
            moved_share=self._returns[False] / returns if returns else 0.0,
            requests=len(self._served),
            observed=observed,
            work=_sum_by_second(self._contexts[0], parameters),
        )


def _sum_by_second(engine: ContextEngine, parameters: Parameters) -> tuple[tuple[int, ...], ...]:
    rows: list[list[int]] = [[0] * parameters.context_ranks for _ in range(int(parameters.duration_s) + 1)]
    for step in engine.steps:
        row: Sequence[int] = rows[int(step.at_s)]
        rows[int(step.at_s)] = [a + b for a, b in zip(row, step.tokens, strict=True)]
    return tuple(tuple(row) for row in rows)
