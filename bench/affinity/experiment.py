"""Which trials are run, and by whom: two processes, each with sidecars of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path

from bench.affinity import arm as arms
from bench.affinity.arm import Arm
from bench.affinity.fleet import SidecarFleet
from bench.affinity.parameter import Parameters
from bench.affinity.trial import Outcome, Trial
from bench.affinity.workload import ClosedLoop, Trace

PROCESSES = 2
MAIN_ARMS = (arms.BEFORE, arms.KV_AWARE, arms.ENGINE, arms.SIDECAR)
_fleet: SidecarFleet | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One trial to run.

    Attributes:
        part: of the report.
        case: row group within the part.
        arm: what is compared.
        parameters: the topology.
        seed: of everything random.
        trace: path and speed of a trace; None for the closed loop.
    """

    part: str
    case: str
    arm: Arm
    parameters: Parameters
    seed: int
    trace: tuple[Path, float] | None = None


def run_job(job: Job) -> Outcome:
    """Runs one trial in this process."""
    global _fleet
    if _fleet is None:
        _fleet = SidecarFleet()
        Finalize(None, _fleet.close, exitpriority=10)
    parameters = job.parameters
    workload = ClosedLoop(parameters) if job.trace is None else Trace(*job.trace, parameters)
    return asyncio.run(Trial(parameters, workload, job.arm, job.seed).run(_fleet))


def run_jobs(jobs: Iterable[Job]) -> Iterator[tuple[Job, Outcome]]:
    """Runs trials side by side and gives them in order."""
    jobs = list(jobs)
    # Forked children would share gRPC's threads with this process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield from zip(jobs, pool.map(run_job, jobs), strict=True)


def plan_policies(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns the policies side by side, on one leg and on both."""
    return [Job("policies", "", arm, parameters, seed) for seed in seeds for arm in arms.POLICIES]


def plan_failures(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns the silent failures; what they lose is held against the policies."""
    return [Job("failures", "", arm, parameters, seed) for seed in seeds for arm in arms.FAILURES]


def plan_kv(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns KV memory for half of, all of and twice what the live conversations need."""
    need = find_kv_need(parameters)
    return [
        Job("kv", f"{room:g} x", arm, replace(parameters, kv_tokens=int(room * need)), seed)
        for room in (0.5, 1.0, 2.0)
        for arm in (*MAIN_ARMS, arms.LEAST_TOKENS, arms.RENDEZVOUS_ARM)
        for seed in seeds
    ]


def find_kv_need(parameters: Parameters) -> int:
    """Returns the tokens that a context rank must keep if live conversations are spread evenly.

    A live conversation is met at a random turn, so it weighs by its turns; an estimate from the parameters,
    of medians and log-spreads, without the limit on length.
    """
    spread = (parameters.task_sigma**2 + parameters.turn_sigma**2) / 2
    mean = 2.718281828**spread
    tokens = parameters.system_tokens + parameters.first_tokens * mean
    tokens += parameters.turns * (parameters.growth_tokens * mean + parameters.output_tokens)
    return int(parameters.concurrency * tokens / (parameters.context_instances * parameters.context_ranks))


def plan_sensitivity(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns one parameter varied at a time; nothing is fitted again."""
    cases = {
        "as fitted": parameters,
        "turns 6": replace(parameters, turns=6),
        "turns 24": replace(parameters, turns=24),
        "growth x 0.5": replace(parameters, growth_tokens=parameters.growth_tokens / 2),
        "growth x 2": replace(parameters, growth_tokens=parameters.growth_tokens * 2),
        "KV x 0.5": replace(parameters, kv_tokens=parameters.kv_tokens // 2),
        "KV x 2": replace(parameters, kv_tokens=parameters.kv_tokens * 2),
        "6 x DEP2": replace(parameters, context_ranks=2, context_instances=6),
        "dp size 12 (1 x DEP12)": replace(parameters, context_ranks=12, context_instances=1),
        "20 % without id": replace(parameters, unnamed_share=0.2),
        "50 % without id": replace(parameters, unnamed_share=0.5),
        "30 % sub-agents": replace(parameters, subagent_share=0.3),
        "60 % sub-agents": replace(parameters, subagent_share=0.6),
    }
    return [
        Job("sensitivity", case, arm, varied, seed)
        for case, varied in cases.items()
        for arm in (arms.BEFORE, arms.ENGINE, arms.SIDECAR)
        for seed in seeds
    ]


def plan_trace(parameters: Parameters, seeds: range, path: Path, speeds: Iterable[float]) -> list[Job]:
    """Returns the recorded hour at several speeds, in an open loop."""
    return [
        Job("trace", f"{speed:g} x", arm, parameters, seed, (path, speed))
        for speed in speeds
        for arm in (*MAIN_ARMS, arms.LEAST_TOKENS)
        for seed in seeds
    ]


def plan_band(fits: Iterable[Parameters], seeds: range) -> list[Job]:
    """Returns the "after" row under every fit of the "before" row."""
    return [
        Job("band", str(number), arm, fit, seed)
        for number, fit in enumerate(fits)
        for arm in (arms.BEFORE, arms.ENGINE)
        for seed in seeds
    ]
