"""Which requests come when: conversations in a closed loop, and a recorded trace in an open one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import simpy

from bench.affinity.clock import on_grid
from bench.affinity.parameter import Parameters
from bench.affinity.prompt import Prompt
from bench.placement.request import BLOCK_TOKENS
from bench.placement.workload import read_trace

_BLOCKS_PER_CONVERSATION = 1_000_000
_TRACE_REQUESTS = 3_000
_TRACE_HISTORY = 1_000
_SPREAD_S = 5.0
_REMEMBERED_TURNS = 6


@dataclass(slots=True, eq=False)
class Conversation:
    """A linear history.

    Attributes:
        name: its session id.
        parent: session id of the conversation that it began from, empty for none.
        is_named: whether its requests carry the id.
        instance: the context instance that it lives on; None before its first turn.
    """

    name: str
    parent: str = ""
    is_named: bool = True
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    conversation: Conversation
    number: int
    prompt: Prompt
    output_tokens: int
    request_id: str


class Service(Protocol):
    """What takes the requests."""

    def serve(self, turn: Turn) -> Generator[simpy.Event, Any, None]:
        """Takes a turn to the end of its output."""

    def remember(self, turn: Turn) -> Generator[simpy.Event, Any, None]:
        """Takes a turn from before the simulation: it is placed and cached, and takes no time."""

    def forget(self, conversation: Conversation) -> None:
        """Takes note that a conversation is over."""


class Workload(Protocol):
    """Gives requests to a simulation."""

    def start(self, env: simpy.Environment, service: Service, seed: int) -> None:
        """Lets requests come; the same seed gives the same ones, however they are served.

        Args:
            env: the simulated time.
            service: takes each of them.
            seed: of everything random.
        """


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """As many requests in flight as the concurrency says, each turn right after the output before it."""

    parameters: Parameters

    def start(self, env: simpy.Environment, service: Service, seed: int) -> None:
        """See `Workload.start`."""
        for slot in range(self.parameters.concurrency):
            rng = np.random.default_rng((seed, slot))
            env.process(self._run_slot(env, service, rng, slot))

    def _run_slot(
        self, env: simpy.Environment, service: Service, rng: np.random.Generator, slot: int
    ) -> Generator[simpy.Event, Any, None]:
        begin_s = on_grid(rng.uniform(0, _SPREAD_S))
        # The first conversation of a slot is met half-way, so that ages are mixed and caches warm from the
        # start; of more than its last turns nothing would be left in a cache that another does not cover.
        is_first, before = True, None
        for turns in self._make_conversations(rng, slot):
            begin = int(rng.integers(0, len(turns))) if is_first else 0
            conversation = turns[0].conversation
            if conversation.parent and before is not None:
                conversation.instance = before.instance
            for turn in turns[max(begin - _REMEMBERED_TURNS, 0) : begin]:
                yield from service.remember(turn)
            if is_first:
                yield env.timeout(begin_s)
            for turn in turns[begin:]:
                yield from service.serve(turn)
            service.forget(conversation)
            is_first, before = False, conversation

    def _make_conversations(self, rng: np.random.Generator, slot: int) -> Iterator[list[Turn]]:
        """Gives one slot's conversations one after the other."""
        parameters = self.parameters
        shared = list(range(parameters.system_tokens // BLOCK_TOKENS))
        history, parent = list(shared), ""
        for count in range(100_000):
            number = slot * 100_000 + count
            is_child = parent != "" and rng.random() < parameters.subagent_share
            if not is_child:
                history, parent = list(shared), ""
            task = float(rng.lognormal(0, parameters.task_sigma))
            conversation = Conversation(
                name=f"session-{number:012d}",
                parent=parent,
                is_named=bool(rng.random() >= parameters.unnamed_share),
            )
            inherited_tokens = len(history) * BLOCK_TOKENS
            tokens = inherited_tokens + self._draw(rng, task * parameters.first_tokens)
            turns: list[Turn] = []
            own = (number + 1) * _BLOCKS_PER_CONVERSATION
            length = int(rng.geometric(1 / parameters.turns))
            if count == 0:
                # Whoever looks in at any moment meets a conversation the likelier the longer it is.
                length += int(rng.geometric(1 / parameters.turns)) - 1
            for turn in range(length):
                if turn and tokens > parameters.max_tokens:
                    break
                tokens = min(tokens, 2 * parameters.max_tokens)
                blocks = [*history, *range(own, own + max(tokens // BLOCK_TOKENS - len(history), 0))]
                output_tokens = self._draw_output(rng)
                turns.append(
                    Turn(conversation, turn, Prompt(tokens, blocks), output_tokens, f"r-{number}-{turn}")
                )
                tokens += output_tokens + self._draw(rng, task * parameters.growth_tokens)
            yield turns
            history, parent = list(turns[-1].prompt.blocks), conversation.name

    def _draw(self, rng: np.random.Generator, median: float) -> int:
        return 1 + int(rng.lognormal(np.log(median), self.parameters.turn_sigma))

    def _draw_output(self, rng: np.random.Generator) -> int:
        return 2 + int(rng.lognormal(np.log(self.parameters.output_tokens), self.parameters.output_sigma))


@dataclass(frozen=True, slots=True)
class Trace:
    """Part of a recorded hour, played faster; the seed says which part."""

    path: Path
    speed: float
    parameters: Parameters

    def start(self, env: simpy.Environment, service: Service, seed: int) -> None:
        """See `Workload.start`; a trace does not say when a conversation is over."""
        rng = np.random.default_rng(seed)
        records = _read_records(self.path)
        begin = int(rng.integers(_TRACE_HISTORY, max(len(records) - _TRACE_REQUESTS, _TRACE_HISTORY + 1)))
        env.process(self._play(env, service, rng, records[begin - _TRACE_HISTORY :]))

    def _play(
        self, env: simpy.Environment, service: Service, rng: np.random.Generator, records: Sequence[Any]
    ) -> Generator[simpy.Event, Any, None]:
        """Serves the records; the first ones fill the caches and are not served."""
        parameters = self.parameters
        conversations: dict[str, Conversation] = {}
        for number, record in enumerate(records):
            conversation = conversations.setdefault(record.conversation, Conversation(record.conversation))
            output_tokens = 2 + int(rng.lognormal(np.log(parameters.output_tokens), parameters.output_sigma))
            prompt = Prompt(max(record.tokens, 1), record.blocks)
            turn = Turn(conversation, number, prompt, output_tokens, f"r-{number}")
            if number < _TRACE_HISTORY:
                env.process(service.remember(turn))
                continue
            at_s = on_grid((record.at_s - records[_TRACE_HISTORY].at_s) / self.speed)
            yield env.timeout(max(at_s - env.now, 0.0))
            env.process(service.serve(turn))


@lru_cache(maxsize=1)
def _read_records(path: Path) -> Sequence[Any]:
    return read_trace(path)
