"""The parts of the affinity simulation, against figures worked out by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="requirements/bench.txt is not installed")

import simpy

from bench.affinity.arm import BEFORE, BEFORE_FORCED, FAILURES, POLICIES, Failure
from bench.affinity.bridge import Bridge
from bench.affinity.calibration import Fit, choose_fits
from bench.affinity.clock import SharedClock, on_grid
from bench.affinity.context import ContextEngine, Prefill
from bench.affinity.generation import GenerationEngine
from bench.affinity.observation import Observed, find_flags
from bench.affinity.parameter import Parameters, load_entries, load_parameters
from bench.affinity.prompt import Prompt
from bench.affinity.trial import Trial
from bench.affinity.workload import ClosedLoop, Conversation, Service, Turn
from bench.statistic import estimate
from examples.fake_engine.params import SchedulingParams

_HEALTHY = Observed(1.0, 1.0, 0.0, (), False, {})


@pytest.fixture
def parameters() -> Parameters:
    """Two ranks that compute 1,000 tokens a second, in steps of up to 1,000 tokens and 0.5 s besides."""
    return replace(
        load_parameters(),
        context_ranks=2,
        chunk_tokens=1_000,
        context_tokens_per_s=1_000.0,
        context_step_s=0.5,
        kv_tokens=512 * 4,
        generation_ranks=2,
        generation_step_s=0.25,
        generation_request_s=0.0,
        generation_kv_tokens=512 * 4,
        transfer_s=1.0,
        transfer_tokens_per_s=1_024.0,
    )


def _submit(
    env: simpy.Environment, engine: ContextEngine, tokens: int, rank: int, *, first: int = 0
) -> Prefill:
    blocks = range(first, first + tokens // 512)
    params = SchedulingParams(attention_dp_rank=rank, attention_dp_relax=False)
    prefill = Prefill(Prompt(tokens, blocks), None, params, env.event())
    engine.submit(prefill)
    return prefill


def test_a_step_lasts_as_long_as_its_busiest_rank(parameters: Parameters) -> None:
    """A rank with little to do waits for the other one."""
    env = simpy.Environment()
    engine = ContextEngine(env, parameters, "default")
    small = _submit(env, engine, 100, 0)
    _submit(env, engine, 800, 1, first=100)
    env.run(until=small.done)
    assert env.now == pytest.approx(0.5 + 0.8, abs=1e-5)
    assert engine.steps[0].tokens == (100, 800)


def test_a_long_prompt_is_computed_in_chunks(parameters: Parameters) -> None:
    """2,500 tokens take three steps of at most 1,000."""
    env = simpy.Environment()
    engine = ContextEngine(env, parameters, "default")
    prefill = _submit(env, engine, 2_500, 0)
    env.run(until=prefill.done)
    assert [step.tokens for step in engine.steps] == [(1_000, 0), (1_000, 0), (500, 0)]
    assert env.now == pytest.approx(3 * 0.5 + 2.5, abs=1e-5)


@pytest.mark.parametrize(("rank", "cached"), [(0, 1_024), (1, 0)])
def test_a_prefix_is_found_on_the_rank_that_computed_it(
    parameters: Parameters, rank: int, cached: int
) -> None:
    """Two blocks of 512 tokens are there on the same rank, and nothing is on the other."""
    env = simpy.Environment()
    engine = ContextEngine(env, parameters, "default")
    env.run(until=_submit(env, engine, 1_024, 0).done)
    again = _submit(env, engine, 1_200, rank)
    env.run(until=again.done)
    assert again.cached_tokens == cached


def test_the_prefix_used_longest_ago_is_evicted(parameters: Parameters) -> None:
    """A rank that holds four blocks forgets the first prompt for the third."""
    env = simpy.Environment()
    engine = ContextEngine(env, parameters, "default")
    for first in (0, 100, 200):
        env.run(until=_submit(env, engine, 1_024, 0, first=first).done)
    forgotten = _submit(env, engine, 1_024, 0, first=0)
    env.run(until=forgotten.done)
    assert forgotten.cached_tokens == 0


def test_a_request_that_insists_waits_for_its_rank(parameters: Parameters) -> None:
    """While its rank is full it is not placed elsewhere, although there is room."""
    env = simpy.Environment()
    engine = ContextEngine(env, replace(parameters, context_max_active=1), "default")
    _submit(env, engine, 900, 0)
    second = _submit(env, engine, 900, 0, first=100)
    env.run(until=second.done)
    assert second.rank == 0
    assert env.now == pytest.approx(2 * (0.5 + 0.9), abs=1e-5)


def test_generation_transfers_only_what_its_rank_lacks(parameters: Parameters) -> None:
    """The first hand-over moves 1,024 tokens in a second, the second one of the conversation none."""
    env = simpy.Environment()
    engine = GenerationEngine(env, parameters, "round_robin")
    prompt = Prompt(1_025, range(2))
    firsts, held = [], []
    for _ in range(2):
        began = env.now
        first, last = engine.decode(prompt, "conversation", None, 2)
        held.append(env.run(until=first))
        firsts.append(env.now - began)
        env.run(until=last)
    assert held == [0, 1_024]
    # 1 s set-up, and the 1 s of the tokens; the rest is the wait for the end of a step of 0.25 s.
    assert 2.0 < firsts[0] <= 2.6
    assert 1.0 < firsts[1] <= 1.6


async def test_simulated_time_stands_still_while_a_call_is_awaited() -> None:
    """Calls are made in the order of events, each at its own time, and later events wait for them."""
    env = simpy.Environment()
    bridge = Bridge(env)
    seen: list[tuple[str, float]] = []

    async def decision(name: str) -> str:
        await asyncio.sleep(0)
        seen.append((name, env.now))
        return name

    def ask(name: str, at_s: float):  # type: ignore[no-untyped-def]
        yield env.timeout(at_s)
        got = yield bridge.call(lambda: decision(name))
        seen.append((f"{got} back", env.now))

    env.process(ask("late", 2.0))
    env.process(ask("early", 1.0))
    await bridge.run(5.0)
    assert seen == [("early", 1.0), ("early back", 1.0), ("late", 2.0), ("late back", 2.0)]


async def test_calls_of_one_instant_are_awaited_together() -> None:
    """They begin in the order of their events, and neither has to return before the other begins."""
    env = simpy.Environment()
    bridge = Bridge(env)
    begun: list[str] = []
    both = asyncio.Event()

    async def decision(name: str) -> None:
        begun.append(name)
        if len(begun) == 2:
            both.set()
        await both.wait()

    def ask(name: str):  # type: ignore[no-untyped-def]
        yield env.timeout(1.0)
        yield bridge.call(lambda: decision(name))

    env.process(ask("first"))
    env.process(ask("second"))
    await asyncio.wait_for(bridge.run(5.0), timeout=10.0)
    assert begun == ["first", "second"]


def test_times_on_the_grid_add_up_exactly() -> None:
    """A run that begins later on the shared clock has the same differences of times."""
    steps = [on_grid(0.1 * number) for number in range(1, 100)]
    begun = [2**30 + step for step in steps]
    assert [b - a for a, b in pairwise(begun)] == [b - a for a, b in pairwise(steps)]


def test_the_shared_clock_never_goes_back(tmp_path: Path) -> None:
    """A reader of the same file sees each run after the one before."""
    writer, reader = SharedClock(tmp_path / "clock"), SharedClock(tmp_path / "clock")
    seen = []
    for _ in range(2):
        writer.begin_run()
        for now_s in (0.0, 75.0):
            writer.set(now_s)
            seen.append(reader.read())
    assert seen == sorted(seen)
    assert seen[1] - seen[0] == 75.0
    assert seen[2] - seen[1] > 3_600.0


class _Recorder:
    """A service that answers each turn after a while of its own."""

    def __init__(self, env: simpy.Environment, answer_s: float) -> None:
        self.turns: dict[str, list[int]] = {}
        self.in_flight = self.most_in_flight = 0
        self._env, self._answer_s = env, answer_s

    def serve(self, turn: Turn):  # type: ignore[no-untyped-def]
        self.turns.setdefault(turn.conversation.name, []).append(len(turn.prompt))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        yield self._env.timeout(self._answer_s)
        self.in_flight -= 1

    def remember(self, turn: Turn):  # type: ignore[no-untyped-def]
        yield self._env.timeout(0)

    def forget(self, conversation: Conversation) -> None:
        pass


def test_requests_are_the_same_however_fast_they_are_served(parameters: Parameters) -> None:
    """A conversation's prompts depend on the seed alone; they only grow, and never more are in flight."""
    served = []
    for answer_s in (1.0, 3.0):
        env = simpy.Environment()
        recorder = _Recorder(env, answer_s)
        ClosedLoop(replace(parameters, concurrency=7)).start(env, recorder, seed=5)
        env.run(until=60.0)
        assert recorder.most_in_flight == 7
        served.append(recorder.turns)
    fast, slow = served
    assert len(slow) > 7
    for name, prompts in slow.items():
        assert fast[name][: len(prompts)] == prompts
        assert prompts == sorted(prompts)


class _Slow:
    """A workload of one prompt after the other, each of 1,000 tokens."""

    def start(self, env: simpy.Environment, service: Service, seed: int) -> None:
        """See `Workload.start`."""
        env.process(self._ask(env, service))

    def _ask(self, env: simpy.Environment, service: Service):  # type: ignore[no-untyped-def]
        for number in range(3):
            conversation = Conversation(f"session-{number}")
            turn = Turn(conversation, 0, Prompt(1_000, [number]), 2, f"r-{number}")
            env.process(service.serve(turn))
            yield env.timeout(10.0)


async def test_what_was_asked_before_the_warm_up_ended_counts_by_its_token(parameters: Parameters) -> None:
    """A prompt asked at 10 s whose token comes after 11 s counts; the one asked at 0 s does not."""
    parameters = replace(parameters, warm_up_s=11.0, duration_s=40.0)
    assert (await Trial(parameters, _Slow(), BEFORE, 1).run()).requests == 2


def test_what_scatters_is_given_longer_to_settle() -> None:
    """Its queues and caches are level later: it counts from 30 s to 45 s, and affinity from 16 s to 26 s."""
    failures = [arm for arm in FAILURES if arm.failure is not Failure.NO_ID_ON_GENERATION]
    assert all(arm.is_scattered for arm in (BEFORE, BEFORE_FORCED, *failures))
    assert not any(arm.is_scattered for arm in POLICIES if arm is not BEFORE)
    usual = load_parameters()
    assert (usual.warm_up_s, usual.duration_s) == (16.0, 26.0)
    assert (usual.for_scattered().warm_up_s, usual.for_scattered().duration_s) == (30.0, 45.0)


async def test_throughput_obeys_littles_law() -> None:
    """Requests in flight are throughput times time in the system, however long that is against the window."""
    parameters = replace(
        load_parameters(),
        concurrency=100,
        warm_up_s=30.0,
        duration_s=60.0,
        output_sigma=0.0,
        output_tokens=500.0,
        generation_step_s=0.02,
        generation_request_s=0.0,
    )
    outcome = await Trial(parameters, ClosedLoop(parameters), BEFORE, 1).run()
    mean_ttft_s = sum(outcome.ttft_s) / len(outcome.ttft_s)
    # 502 tokens, of which the first has come, at 0.02 s.
    assert outcome.requests_per_s * (mean_ttft_s + 501 * 0.02) == pytest.approx(100, rel=0.1)


def test_every_parameter_says_where_it_comes_from(tmp_path: Path) -> None:
    """An entry without a source is refused, and so is a third free parameter."""
    assert sum(entry["sure"] == "free" for entry in load_entries().values()) == 2
    path = tmp_path / "parameters.yaml"
    path.write_text("turns: {value: 12, unit: turns, sure: guess}\n")
    with pytest.raises(ValueError, match="turns"):
        load_entries(path)
    entry = "{value: 1, unit: s, source: none, sure: free}"
    path.write_text("".join(f"{name}: {entry}\n" for name in "abc"))
    with pytest.raises(ValueError, match="free"):
        load_entries(path)


def test_only_fits_within_the_tolerance_are_kept() -> None:
    """4.9 % off stays; 5.5 % off goes, and so do a throughput 10 % off and a fit on fewer seeds."""
    near, good = Fit(1.0, 1.0, 8.80, 46.0, 5), Fit(2.0, 1.0, 8.40, 46.5, 5)
    far, fast = Fit(3.0, 1.0, 8.85, 46.0, 5), Fit(4.0, 1.0, 8.39, 50.6, 5)
    assert choose_fits([near, far, Fit(2.0, 1.0, 8.39, 46.0, 2), fast, good]) == [good, near]
    assert choose_fits([far, fast]) == [far]


def test_an_interval_is_students() -> None:
    """1, 2, 3, 4, 5: mean 3, standard error 0.7071, t 2.776; a single value has none."""
    of_five = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert of_five.mean == 3.0
    assert of_five.half_width == pytest.approx(1.963, abs=0.001)
    assert f"{estimate([2.0]):.1f}" == "2.0"


def test_a_healthy_run_raises_no_flag() -> None:
    """And each sign of trouble raises its own."""
    assert find_flags(_HEALTHY) == []
    assert find_flags(replace(_HEALTHY, attached_context=0.5)) == ["no id in the context phase"]
    assert find_flags(replace(_HEALTHY, attached_generation=0.0)) == ["no id in the generation phase"]
    assert find_flags(replace(_HEALTHY, rank_forced=True)) == ["rank forced"]
    assert find_flags(replace(_HEALTHY, moved=0.5)) == ["conversations move"]
    assert find_flags(replace(_HEALTHY, warnings=("a_warning",))) == ["a_warning"]
