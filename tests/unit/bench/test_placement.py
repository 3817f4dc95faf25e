"""The simulation that placements are compared on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="the benchmarks' tools are not installed")

from bench.placement.contender import (
    CONTENDERS,
    ENGINE_DEFAULT,
    ENGINE_OPTIONS,
    LEAST_LOAD,
    NO_AFFINITY,
    Contender,
)
from bench.placement.engine import EngineShape, KvCache, OverfullRankError
from bench.placement.rule import LeastTokensRouter
from bench.placement.trial import Trial
from bench.placement.workload import AGENTS, read_trace
from bench.statistic import compare, estimate
from examples.fake_engine.router import Loads

_SMALL = replace(AGENTS, agents=16, duration_s=120.0, warm_up_s=20.0)
_OVERLOADED = replace(_SMALL, engine=EngineShape(max_active=2, tokens_per_s=2_000.0), pause_s=0.5)


def test_a_trial_repeats() -> None:
    """One seed gives one outcome."""
    assert Trial(_SMALL, LEAST_LOAD, 1).run() == Trial(_SMALL, LEAST_LOAD, 1).run()
    assert Trial(_SMALL, LEAST_LOAD, 1).run() != Trial(_SMALL, LEAST_LOAD, 2).run()


def test_affinity_keeps_conversations_and_their_prefixes() -> None:
    """The engine's rule and the sidecar's move nothing and find more cached than no affinity at all."""
    none, engine, sidecar = [
        Trial(_SMALL, each, 1).run() for each in (NO_AFFINITY, ENGINE_DEFAULT, LEAST_LOAD)
    ]
    assert (engine.moves, sidecar.moves) == (0, 0)
    assert none.moves > 1
    assert min(engine.cached_share, sidecar.cached_share) > none.cached_share


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_no_router_overfills_a_rank(contender: Contender) -> None:
    """In overload each obeys the engine's hard cap; the engine of the model would refuse."""
    assert Trial(_OVERLOADED, contender, 1).run().ttft_s[0] > 1


def test_an_overfilled_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that looks at tokens alone would win by breaking the cap."""

    def ignore_cap(self: LeastTokensRouter, cap: int, loads: Loads) -> int:
        return loads.active_tokens.index(min(loads.active_tokens))

    monkeypatch.setattr(LeastTokensRouter, "_next_round_robin", ignore_cap)
    with pytest.raises(OverfullRankError):
        Trial(_OVERLOADED, ENGINE_OPTIONS[1], 1).run()


def test_conversations_of_a_trace_follow_from_their_prefixes(tmp_path: Path) -> None:
    """A prompt belongs to the conversation whose prefix it extends; the first block is everybody's."""
    prompts = [[0, 1, 2], [0, 3], [0, 1, 2, 4], [0, 1, 5], [0], [0, 3, 6]]
    path = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"timestamp": number, "input_length": 1, "hash_ids": blocks})
        for number, blocks in enumerate(prompts)
    ]
    path.write_text("\n".join(lines))
    names = [record.conversation for record in read_trace(path)]
    assert names[0] == names[2] == names[3]
    assert names[1] == names[5]
    assert len(set(names)) == 3


def test_a_full_cache_drops_tails_first() -> None:
    """Of the prompt used longest ago the head outlives the tail."""
    cache = KvCache(max_tokens=4 * 512)
    cache.store([1, 2, 3])
    cache.store([7, 8])
    assert cache.match([1, 2, 3]) == 2
    assert cache.match([7, 8]) == 2


def test_intervals_are_of_differences_on_equal_seeds() -> None:
    """A constant advantage has no spread, however much the seeds differ."""
    assert estimate([1.0, 2.0, 3.0]).mean == 2
    # Student's t for two degrees of freedom is 4.303, the standard error 1 / sqrt(3).
    assert estimate([1.0, 2.0, 3.0]).half_width == pytest.approx(4.303 / 3**0.5)
    against = compare([5.0, 50.0], [10.0, 100.0])
    assert (against.mean, against.half_width) == (-50, 0)
