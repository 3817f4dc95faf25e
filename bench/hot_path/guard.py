"""The regression guard: ratios to the echo, and a control that costs eight times as much.

Processor time for each response is what a regression raises; ratios of the same round cancel the machine's
speed. They do not cancel busy neighbors on the same host: beside them, the same sources measure up to three
times the ratio of a quiet machine at 64 in flight.
"""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from bench.hot_path.drive import Call
from bench.hot_path.measure import Bench, Samples, median_cpu_ratio, median_ratio, open_bench

RUN_S = 0.4

# The highest medians of two cores on a busy host, with a little room; eight times the cost is beyond each of
# them on a quiet one, too.
LIMITS = {
    "plan's cpu, 1 in flight": 1.6,
    "plan's cpu, 64 in flight": 0.8,
    "plan's p50, 1 in flight": 1.6,
    "stream's cpu, with finishes, 64 in flight": 0.2,
    "stream's cpu, new ids, 64 in flight": 0.32,
}
_CONTROL_CALLS = 8
_CONTROL = " eight times"
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
    """Returns whether every ratio is within its limit, and an eightfold cost within none."""
    async with open_bench() as bench:
        multiplied = _multiply(bench, "plan", *STREAMS)
        plans = ("plan", f"plan{_CONTROL}")
        streams = (*STREAMS, *(f"{name}{_CONTROL}" for name in STREAMS))
        samples = await multiplied.sample((1,), rounds, RUN_S, *plans, "echo")
        samples |= await multiplied.sample((64,), rounds, RUN_S, *plans, *streams, "echo")
    ours, control = measure_ratios(samples), measure_ratios(samples, _CONTROL)
    table = Table("ratio to the echo", "measured", "limit", "control: eight times the cost")
    for name, limit in LIMITS.items():
        table.add_row(name, f"{ours[name]:.3g}", f"{limit:g}", f"{control[name]:.3g}")
    Console(width=100).print(table)
    return not exceeds(ours) and len(exceeds(control)) == len(LIMITS)


def _multiply(bench: Bench, *names: str) -> Bench:
    """Returns the bench with load generators besides the named ones that make every call eight times."""

    def repeat(call: Call) -> Call:
        async def call_repeatedly() -> float:
            for _ in range(_CONTROL_CALLS - 1):
                await call()
            return await call()

        return call_repeatedly

    multiplied = {
        f"{name}{_CONTROL}": replace(
            bench.load_generators[name], call=repeat(bench.load_generators[name].call)
        )
        for name in names
    }
    return replace(bench, load_generators=bench.load_generators | multiplied)
