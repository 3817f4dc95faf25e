"""The regression guard: ratios to the echo that noise hardly moves, and a control that doubles the cost.

Processor time for each response is what a regression raises and what other work on the machine leaves alone;
ratios of the same round cancel the machine's speed.
"""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from bench.hot_path.drive import Call
from bench.hot_path.measure import Bench, Samples, median_cpu_ratio, median_ratio, open_bench

RUN_S = 0.4

# Medians of several runs on two cores, with room for noise; a doubled cost is beyond each of them.
LIMITS = {
    "plan's cpu, 1 in flight": 1.6,
    "plan's cpu, 64 in flight": 0.38,
    "plan's p50, 1 in flight": 1.6,
    "stream's cpu, with finishes, 64 in flight": 0.135,
    "stream's cpu, new ids, 64 in flight": 0.17,
}
_TWICE = " twice"
STREAMS = ("stream, with finishes", "stream, new ids")


def measure_ratios(samples: Samples, suffix: str = "") -> dict[str, float]:
    """Returns the guarded ratios to the echo, of the load generators whose names end in `suffix`."""
    plan, with_finishes, new_ids = (f"{name}{suffix}" for name in ("plan", *STREAMS))
    return {
        "plan's cpu, 1 in flight": median_cpu_ratio(samples, (plan, 1), ("echo", 1)),
        "plan's cpu, 64 in flight": median_cpu_ratio(samples, (plan, 64), ("echo", 64)),
        "plan's p50, 1 in flight": median_ratio(samples, (plan, 1), ("echo", 1), "p50_us"),
        "stream's cpu, with finishes, 64 in flight": median_cpu_ratio(
            samples, (with_finishes, 64), ("echo", 64)
        ),
        "stream's cpu, new ids, 64 in flight": median_cpu_ratio(samples, (new_ids, 64), ("echo", 64)),
    }


def exceeds(ratios: dict[str, float]) -> list[str]:
    """Returns the names of the ratios that are over their limit."""
    return [name for name, limit in LIMITS.items() if ratios[name] > limit]


async def guard(rounds: int) -> bool:
    """Returns whether every ratio is within its limit, and a doubled cost within none."""
    async with open_bench() as bench:
        doubled = _double(bench, "plan", *STREAMS)
        plans = ("plan", f"plan{_TWICE}")
        streams = (*STREAMS, *(f"{name}{_TWICE}" for name in STREAMS))
        samples = await doubled.sample((1,), rounds, RUN_S, *plans, "echo")
        samples |= await doubled.sample((64,), rounds, RUN_S, *plans, *streams, "echo")
    ours, control = measure_ratios(samples), measure_ratios(samples, _TWICE)
    table = Table("ratio to the echo", "measured", "limit", "control: twice the cost")
    for name, limit in LIMITS.items():
        table.add_row(name, f"{ours[name]:.3g}", f"{limit:g}", f"{control[name]:.3g}")
    Console(width=100).print(table)
    return not exceeds(ours) and len(exceeds(control)) == len(LIMITS)


def _double(bench: Bench, *names: str) -> Bench:
    """Returns the bench with load generators besides the named ones that make every call twice."""

    def twice(call: Call) -> Call:
        async def call_twice() -> float:
            await call()
            return await call()

        return call_twice

    doubled = {
        f"{name}{_TWICE}": replace(bench.load_generators[name], call=twice(bench.load_generators[name].call))
        for name in names
    }
    return replace(bench, load_generators=bench.load_generators | doubled)
