"""The generation engine: takes over computed prompts and decodes all its requests step by step."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Any

import simpy

from bench.affinity.clock import on_grid
from bench.affinity.context import build_engine_router, match_tokens
from bench.affinity.parameter import Parameters
from bench.affinity.prompt import Prompt
from bench.placement.engine import KvCache
from examples.fake_engine.router import Loads, RoutableRequest


class GenerationEngine:
    """Ranks that step together; a step takes longer the more requests the busiest rank has.

    Args:
        env: the simulated time.
        parameters: size and speed.
        router: name of the engine's router.
    """

    def __init__(self, env: simpy.Environment, parameters: Parameters, router: str) -> None:
        ranks = range(parameters.generation_ranks)
        self._env = env
        self._parameters = parameters
        self._caches = [KvCache(parameters.generation_kv_tokens) for _ in ranks]
        self._router = build_engine_router(
            router, lambda rank, prompt: match_tokens(self._caches[rank], prompt)
        )
        self._requests = [0 for _ in ranks]
        self._tokens = [0 for _ in ranks]
        self._step = 0
        self._due: list[tuple[int, int, simpy.Event]] = []
        self._number = 0
        self._arrival = env.event()
        env.process(self._run())

    def decode(
        self, prompt: Prompt, conversation_id: str | None, scheduling_params: Any, output_tokens: int
    ) -> tuple[simpy.Event, simpy.Event]:
        """Takes a computed prompt over; returns the events of its first token and of its last.

        The first one's value is the number of prompt tokens that its rank held and did not take over.
        """
        loads = Loads(list(self._requests), list(self._tokens), self._parameters.generation_max_active)
        request = RoutableRequest(
            request_id=0,
            token_ids=prompt,
            conversation_id=conversation_id,
            scheduling_params=scheduling_params,
        )
        placements = self._router.route([request], loads)
        rank = next(rank for rank, placed in placements.items() if placed)
        self._requests[rank] += 1
        self._tokens[rank] += len(prompt)
        first, last = self._env.event(), self._env.event()
        self._env.process(self._decode(prompt, rank, output_tokens, first, last))
        return first, last

    def _decode(
        self, prompt: Prompt, rank: int, output_tokens: int, first: simpy.Event, last: simpy.Event
    ) -> Generator[simpy.Event, Any, None]:
        # What the rank holds of the prompt already is not transferred again.
        held_tokens = match_tokens(self._caches[rank], prompt)
        missing = len(prompt) - held_tokens
        parameters = self._parameters
        yield self._env.timeout(on_grid(parameters.transfer_s + missing / parameters.transfer_tokens_per_s))
        yield self._wait_steps(1)
        first.succeed(held_tokens)
        yield self._wait_steps(max(output_tokens - 1, 1))
        self._requests[rank] -= 1
        self._tokens[rank] -= len(prompt)
        self._caches[rank].store(prompt.blocks)
        last.succeed()

    def _wait_steps(self, steps: int) -> simpy.Event:
        event = self._env.event()
        self._number += 1
        heapq.heappush(self._due, (self._step + steps, self._number, event))
        if not self._arrival.triggered:
            self._arrival.succeed()
        return event

    def _run(self) -> Generator[simpy.Event, Any, None]:
        parameters = self._parameters
        while True:
            if not self._due:
                self._arrival = self._env.event()
                yield self._arrival
            step_s = parameters.generation_step_s + parameters.generation_request_s * max(self._requests)
            yield self._env.timeout(on_grid(step_s))
            self._step += 1
            while self._due and self._due[0][0] <= self._step:
                heapq.heappop(self._due)[2].succeed()
