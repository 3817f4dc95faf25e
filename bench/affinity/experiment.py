"""Which trials are run, and by whom: two processes, each with sidecars of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType

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
    if job.arm.is_scattered and job.trace is None:
        parameters = parameters.for_scattered()
    workload = ClosedLoop(parameters) if job.trace is None else Trace(*job.trace, parameters)
    return asyncio.run(Trial(parameters, workload, job.arm, job.seed).run(_fleet))


class Runner:
    """Runs trials side by side; its processes keep their sidecars from one trial to the next."""

    def __init__(self) -> None:
        # Forked children would share gRPC's threads with this process.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(PROCESSES, mp_context=context)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Gives each job with its outcome, in order."""
        return zip(jobs, self._pool.map(run_job, jobs), strict=True)


def plan_policies(parameters: Parameters, seeds: range, policies: Iterable[Arm] = arms.POLICIES) -> list[Job]:
    """Returns the policies side by side, in one phase and in both."""
    return [Job("policies", "", arm, parameters, seed) for arm in policies for seed in seeds]


def plan_failures(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns the silent failures; what they lose is held against the policies."""
    return [Job("failures", "", arm, parameters, seed) for arm in arms.FAILURES for seed in seeds]


def plan_kv(parameters: Parameters, seeds: range) -> list[Job]:
    """Returns KV memory for half of, all of and twice what the live conversations need."""
    need = find_kv_need(parameters)
    return [
        Job("kv", f"{room:g} x", arm, replace(parameters, kv_tokens=int(room * need)), seed)
        for room in (0.5, 1.0, 2.0)
        for arm in MAIN_ARMS
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
    """Returns one parameter varied at a time; nothing is fitted again.

    The setting itself is among the policies, and the KV capacity is a part of its own.
    """
    cases = {
        "turns 24": replace(parameters, turns=24),
        "growth x 2": replace(parameters, growth_tokens=parameters.growth_tokens * 2),
        "dp size 12 (1 instance)": replace(parameters, context_ranks=12, context_instances=1),
        "30 % without id": replace(parameters, unnamed_share=0.3),
        "50 % sub-agents": replace(parameters, subagent_share=0.5),
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


def plan_band(fits: Mapping[str, tuple[Arm, Sequence[Parameters]]], seeds: range) -> list[Job]:
    """Returns the "after" row under every fit of each reading of the "before" row.

    The best fit of the balanced reading is left out: all other parts run on it, the policies among them.

    Args:
        fits: by the reading's name, its arm and the fitted parameters.
        seeds: of each row.
    """
    return [
        Job("band", f"{reading} {number}", arm, fit, seed)
        for reading, (before, fitted) in fits.items()
        for number, fit in enumerate(fitted)
        if (before, number) != (arms.BEFORE, 0)
        for arm in (before, arms.ENGINE)
        for seed in seeds
    ]
