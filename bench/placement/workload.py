"""Which requests come when: a synthetic fleet of agents, and a recorded trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import simpy

from bench.placement.engine import EngineShape
from bench.placement.request import BLOCK_TOKENS, Request

Serve: TypeAlias = Callable[[Request], Generator[simpy.Event, Any, None]]
"""Takes a request to its end."""

_BLOCKS_PER_CONVERSATION = 1_000_000
TRACE_SOURCE = "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl"


@dataclass(frozen=True, slots=True)
class AgentWorkload:
    """A fixed number of agents at a time; each goes through one conversation and is replaced by another.

    Prompts grow by a heavy-tailed number of tokens a turn, some conversations' faster than others'. All share
    one system prompt.
    """

    name: str
    engine: EngineShape
    agents: int = 153
    system_tokens: int = 4_096
    first_tokens: float = 6_000.0
    """Median of what a first turn adds to the system prompt."""
    growth_tokens: float = 1_500.0
    """Median of what a later turn adds."""
    task_sigma: float = 1.0
    """Spread of both between conversations, of the logarithm: some tasks read more than others."""
    turn_sigma: float = 0.8
    """Spread of both between turns, of the logarithm."""
    turns: float = 20.0
    """Mean number of turns."""
    pause_s: float = 6.0
    """Median time from the end of one prompt to the next: decoding, tools, people."""
    max_tokens: int = 200_000
    duration_s: float = 600.0
    warm_up_s: float = 150.0

    def start(self, env: simpy.Environment, serve: Serve, seed: int) -> None:
        """Lets the agents begin, spread over the time of a pause."""
        for agent in range(self.agents):
            env.process(self._run_agent(env, serve, np.random.default_rng((seed, agent)), agent))

    def _run_agent(
        self, env: simpy.Environment, serve: Serve, rng: np.random.Generator, agent: int
    ) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(rng.uniform(0, 2 * self.pause_s))
        number = agent
        while True:
            task = rng.lognormal(0, self.task_sigma)
            tokens = self.system_tokens + self._draw(rng, task * self.first_tokens)
            for _ in range(rng.geometric(1 / self.turns)):
                request = Request(
                    f"{number:016x}", self._name_blocks(number, tokens), tokens, env.now, env.event()
                )
                yield from serve(request)
                yield env.timeout(rng.lognormal(np.log(self.pause_s), 0.8))
                tokens += self._draw(rng, task * self.growth_tokens)
                if tokens > self.max_tokens:
                    break
            number += self.agents

    def _draw(self, rng: np.random.Generator, median: float) -> int:
        return 1 + int(rng.lognormal(np.log(median), self.turn_sigma))

    def _name_blocks(self, number: int, tokens: int) -> list[int]:
        shared = self.system_tokens // BLOCK_TOKENS
        own = (number + 1) * _BLOCKS_PER_CONVERSATION
        blocks = tokens // BLOCK_TOKENS
        return [*range(min(shared, blocks)), *range(own, own + max(blocks - shared, 0))]


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """A recorded hour, played faster; the seed shifts which part of it is played."""

    name: str
    engine: EngineShape
    path: Path
    speed: float = 2.5
    duration_s: float = 700.0
    warm_up_s: float = 150.0

    def start(self, env: simpy.Environment, serve: Serve, seed: int) -> None:
        """Lets the requests come at their recorded times."""
        records = read_trace(self.path)
        hour_s = records[-1].at_s / self.speed
        begin_s = np.random.default_rng(seed).uniform(0, max(hour_s - self.duration_s, 0))
        env.process(self._play(env, serve, records, begin_s))

    def _play(
        self, env: simpy.Environment, serve: Serve, records: list[Record], begin_s: float
    ) -> Generator[simpy.Event, Any, None]:
        for record in records:
            at_s = record.at_s / self.speed - begin_s
            if at_s < env.now:
                continue
            yield env.timeout(at_s - env.now)
            request = Request(record.conversation, record.blocks, max(record.tokens, 1), env.now, env.event())
            env.process(serve(request))


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a trace."""

    at_s: float
    conversation: str
    tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[Record]:
    """Reads a trace in the format of Mooncake's, one JSON object a line.

    It has no session ids. A request belongs to the conversation of the longest earlier prompt whose prefix it
    extends, where the first block does not count: nearly all share it.
    """
    records: list[Record] = []
    # The conversation that last went through a block, for every block but the first.
    owner: dict[int, str] = {}
    for number, entry in enumerate(_read_lines(path)):
        blocks = tuple(entry["hash_ids"])
        owners = [owner[block] for block in blocks[1:] if block in owner]
        conversation = owners[-1] if owners else f"{number:016x}"
        owner.update(dict.fromkeys(blocks[1:], conversation))
        records.append(Record(entry["timestamp"] / 1_000, conversation, entry["input_length"], blocks))
    return records


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


AGENTS = AgentWorkload("agents", EngineShape())
"""The workload that defaults were chosen on."""
HELD_OUT = (
    replace(AGENTS, name="a few heavy tasks", task_sigma=1.5, growth_tokens=900.0, first_tokens=4_000.0),
    replace(AGENTS, name="alike tasks", task_sigma=0.0, turn_sigma=1.3),
    replace(AGENTS, name="short tasks", agents=250, turns=5.0, growth_tokens=600.0, first_tokens=3_000.0),
    replace(AGENTS, name="eight ranks", agents=306, engine=EngineShape(ranks=8)),
    replace(AGENTS, name="short of KV memory", engine=EngineShape(kv_tokens=1_000_000)),
    replace(AGENTS, name="light load", agents=60),
)
"""Variations that nothing was chosen on."""
