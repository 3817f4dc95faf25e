"""The regression guard: ratios to the echo that noise hardly moves, and a control that doubles the cost.

Processor time for each answer is what a regression raises and what other work on the machine leaves alone;
ratios of the same round cancel the machine's speed.
"""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from bench.hot_path.measure import Bench, Samples, median_cpu_ratio, median_ratio, open_bench

RUN_S = 0.4
IN_FLIGHT = (1, 64)

# Medians of several runs on two cores, with room for noise; a doubled cost is beyond each of them.
LIMITS = {"cpu, 1 in flight": 1.6, "cpu, 64 in flight": 0.40, "p50, 1 in flight": 1.6}


def measure_ratios(samples: Samples, name: str) -> dict[str, float]:
    """Returns the guarded ratios of one asker to the echo."""
    return {
        "cpu, 1 in flight": median_cpu_ratio(samples, (name, 1), ("echo", 1)),
        "cpu, 64 in flight": median_cpu_ratio(samples, (name, 64), ("echo", 64)),
        "p50, 1 in flight": median_ratio(samples, (name, 1), ("echo", 1), "p50_us"),
    }


def exceeds(ratios: dict[str, float]) -> list[str]:
    """Returns the names of the ratios that are over their limit."""
    return [name for name, limit in LIMITS.items() if ratios[name] > limit]


async def guard(rounds: int) -> bool:
    """Returns whether every ratio is within its limit, and a doubled cost within none."""
    async with open_bench() as bench:
        doubled = _double(bench)
        samples = await doubled.sample(IN_FLIGHT, rounds, RUN_S, "plan", "plan twice", "echo")
    ours, control = measure_ratios(samples, "plan"), measure_ratios(samples, "plan twice")
    table = Table("ratio to the echo", "measured", "limit", "control: twice the cost")
    for name, limit in LIMITS.items():
        table.add_row(name, f"{ours[name]:.2f}", f"{limit:.2f}", f"{control[name]:.2f}")
    Console().print(table)
    return not exceeds(ours) and len(exceeds(control)) == len(LIMITS)


def _double(bench: Bench) -> Bench:
    """Returns the bench with an asker that plans every request twice."""
    plan = bench.askers["plan"]

    async def ask() -> float:
        await plan.ask()
        return await plan.ask()

    return replace(bench, askers=bench.askers | {"plan twice": replace(plan, ask=ask)})
