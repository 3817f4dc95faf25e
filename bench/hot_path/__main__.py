"""`python -m bench.hot_path`: measures the hot path beside its peers."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import click
import structlog

from bench.hot_path.guard import guard
from bench.hot_path.measure import (
    median_figure,
    median_ratio,
    median_sample,
    open_bench,
    time_in_process,
    time_starts,
)
from bench.hot_path.memory import measure_growth
from bench.hot_path.report import Figure, Report
from bench.hot_path.timeout_rate import measure_timeout_rates
from bench.soak.run import soak

IN_FLIGHT = (1, 16, 256)
"""Besides `BUSY`, where the stream takes its turn too."""
BUSY = 64
PEERS = ("plan", "plan, 40 headers", "echo", "raw")
STREAMS = ("stream", "stream, with finishes", "stream, new ids")
MAX_GROWTH_MIB = 64.0


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Measure the hot path; without a command, `run`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if context.invoked_subcommand is None:
        context.invoke(run)


@main.command()
@click.option("--rounds", default=5, show_default=True, help="Turns of each load generator.")
@click.option("--sessions", default=1_000_000, show_default=True, help="Distinct sessions of the memory run.")
@click.option("--soak-seconds", default=20.0, show_default=True, help="Time under faults.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the figures here.")
def run(rounds: int, sessions: int, soak_seconds: float, json_path: Path | None) -> None:
    """Measure every figure, and fail where a must is missed."""
    report = asyncio.run(_measure(rounds, sessions, soak_seconds))
    report.show()
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    sys.exit(0 if all(figure.is_met for figure in report.figures) else 1)


@main.command("guard")
@click.option("--rounds", default=9, show_default=True, help="Turns of each load generator.")
@click.option("--attempts", default=2, show_default=True, help="Tries, since other work can spoil one.")
def run_guard(rounds: int, attempts: int) -> None:
    """Fail where the hot path costs clearly more than it did; a control costs eight times as much."""
    sys.exit(0 if any(asyncio.run(guard(rounds)) for _ in range(attempts)) else 1)


async def _measure(rounds: int, sessions: int, soak_seconds: float) -> Report:
    report = Report()
    times = await time_in_process(1.0)
    report.facts |= {f"{name}, us": value for name, value in times.items()}
    report.facts["sidecar's start, s"] = await time_starts(3)
    async with open_bench() as bench:
        samples = await bench.sample(IN_FLIGHT, rounds, 0.5, *PEERS)
        samples |= await bench.sample((BUSY,), rounds, 0.5, *PEERS, *STREAMS)
        timeouts = await measure_timeout_rates(bench.sidecar.socket_path, bench.echo, 8.0)
    growth = await measure_growth(sessions)
    under_faults = await soak(soak_seconds)
    report.samples = {
        f"{name}, {number}": median_sample(found)
        for (name, number), found in sorted(samples.items(), key=lambda entry: (entry[0][1], entry[0][0]))
    }
    report.facts |= {
        "plans over 25 ms in a busy loop, %": timeouts.plans * 100,
        "echoes over 25 ms in a busy loop, %": timeouts.echoes * 100,
        "sidecar's memory when idle, MiB": growth.sidecar_idle_mib,
        "client's memory after the sessions, + MiB": growth.client_mib,
    }
    echo_p50 = median_figure(samples, ("echo", 1), "p50_us")
    report.figures = [
        Figure(
            "plan() p50 / echo p50, 1 in flight",
            median_ratio(samples, ("plan", 1), ("echo", 1), "p50_us"),
            0.6,
            0.4,
        ),
        Figure(
            "decisions/s of the sidecar / echoes/s, 64 in flight",
            median_ratio(samples, ("stream", BUSY), ("echo", BUSY), "per_s"),
            8,
            20,
            is_at_least=True,
        ),
        Figure(
            "whole plans/s / echoes/s, 64 in flight",
            median_ratio(samples, ("plan", BUSY), ("echo", BUSY), "per_s"),
            8,
            20,
            is_at_least=True,
        ),
        Figure("decision alone / echo p50", times["decision, 5 headers"] / echo_p50, 1 / 20, 1 / 50),
        Figure(
            "exceptions, lost ids and moved ranks under faults",
            float(
                sum(under_faults.unexpected_exceptions.values())
                + under_faults.wrong_ids
                + under_faults.missing_ids
                + under_faults.moved_ranks
            ),
            0,
            unit="",
        ),
        Figure(
            f"sidecar's memory after {growth.sessions:,} sessions",
            growth.sidecar_mib,
            MAX_GROWTH_MIB,
            unit="MiB",
        ),
    ]
    return report


if __name__ == "__main__":
    main()
