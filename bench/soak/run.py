"""One soak, from start to report."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.process import START_TIMEOUT_S, start_sidecar
from bench.soak.fault import FaultInjector, change_policy, write_policy
from bench.soak.gauge import Gauge
from bench.soak.ledger import Ledger
from bench.soak.load import Load
from bench.workload import ENGINE, Workload
from worker_client import ClientConfig, RoutingHintClient

MAX_CLIENT_GROWTH_MIB = 16.0
MAX_SIDECAR_GROWTH_MIB = 64.0
MAX_NEW_FILES = 4
_MEMORY_ENTRIES = 65_536
# The loop may be delayed when a plan begins, when its deadline fires, and when it goes on.
_MOST_DELAYS = 3
_SLACK_S = 0.02


@dataclass(frozen=True, slots=True)
class SoakReport:
    """The figures of a soak; `complaints` is empty for a clean one."""

    seconds: float
    seed: int
    fails_open: bool
    requests: int
    plans_by_origin: dict[str, int]
    cancelled: int
    faults: dict[str, int]
    unexpected_exceptions: dict[str, int]
    internal_errors: dict[str, int]
    wrong_ids: int
    missing_ids: int
    moved_ranks: int
    finishes_lost: int
    plan_p50_ms: float
    plan_p99_ms: float
    plan_longest_ms: float
    loop_longest_delay_ms: float
    client_growth_mib: float
    client_slope_mib_per_min: float
    sidecar_growth_mib: float
    sidecar_slope_mib_per_min: float
    new_files: int
    tasks_left: int
    fail_open_reasons: dict[str, int]
    complaints: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold."""
        return asdict(self)


async def soak(seconds: float, *, fails_open: bool = True, seed: int = 1) -> SoakReport:
    """Runs a worker's load against a sidecar into which faults are injected.

    Args:
        seconds: how long.
        fails_open: False takes memory and local rule away from the client, as a control.
        seed: of every choice that is made at random.
    """
    dice = random.Random(seed)  # noqa: S311  no secret
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="rh-soak-") as name:
        folder = Path(name)
        policy = folder / "policy.yaml"
        write_policy(policy, 0)
        sidecar = start_sidecar(folder, "--policy", str(policy))
        config = ClientConfig(
            target=f"unix://{sidecar.socket_path}",
            memory_entries=_MEMORY_ENTRIES if fails_open else 0,
            local_rule=fails_open,
        )
        async with sidecar:
            idle_mib = sidecar.rss_bytes() / 2**20
            async with RoutingHintClient(config) as client:
                gauge, faults = Gauge(sidecar), FaultInjector(sidecar, dice)
                await asyncio.wait_for(_await_first_decision(client), START_TIMEOUT_S)
                tasks_before = len(asyncio.all_tasks())
                runs = [
                    asyncio.create_task(run)
                    for run in (
                        gauge.run(),
                        gauge.watch_loop(),
                        faults.run(),
                        change_policy(policy),
                        Load(client, ledger, dice).run(),
                    )
                ]
                done, _ = await asyncio.wait(runs, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                for run in runs:
                    run.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
                for run in done:
                    run.result()  # a part of the soak itself broke
                tasks_left = len(asyncio.all_tasks()) - tasks_before
            stats = client.stats()
    return _report(
        ledger,
        gauge,
        faults,
        stats,
        seconds=seconds,
        seed=seed,
        fails_open=fails_open,
        idle_mib=idle_mib,
        tasks_left=tasks_left,
    )


async def _await_first_decision(client: RoutingHintClient) -> None:
    """Returns once the stream is up, so that its tasks exist before tasks are counted."""
    engine_request = Workload(1, 5).request_of(0, 0)
    while client.stats().get("plans", {}).get("sidecar", 0) == 0:
        await client.plan(
            engine_request.request, engine_request.context, phase=engine_request.phase, engine=ENGINE
        )


def _report(
    ledger: Ledger,
    gauge: Gauge,
    faults: FaultInjector,
    stats: dict[str, dict[str, int]],
    *,
    seconds: float,
    seed: int,
    fails_open: bool,
    idle_mib: float,
    tasks_left: int,
) -> SoakReport:
    latencies_ms = np.array(ledger.latencies_s) * 1_000
    deadline_ms = (ClientConfig().unknown_timeout_s + _MOST_DELAYS * gauge.longest_delay_s + _SLACK_S) * 1_000
    internal_errors = stats.get("internal_errors", {})
    lost = stats.get("finishes_lost", {}).get("", 0)
    new_files = gauge.client_files[-1] - gauge.client_files[min(2, len(gauge.client_files) - 1)]
    sidecar_growth = gauge.sidecar_most_mib - idle_mib
    checks = (
        ("unexpected exceptions", sum(ledger.errors.values()) > 0),
        ("internal errors", sum(internal_errors.values()) > 0),
        ("wrong ids", ledger.wrong_ids > 0),
        ("missing ids", ledger.missing_ids > 0),
        ("moved ranks", ledger.moved_ranks > 0),
        ("finishes lost", lost > 0),
        ("a plan waited past its deadline", ledger.longest_s * 1_000 > deadline_ms),
        ("the client grows", gauge.client_growth_mib > MAX_CLIENT_GROWTH_MIB),
        ("the sidecar grows", sidecar_growth > MAX_SIDECAR_GROWTH_MIB),
        ("file descriptors leak", new_files > MAX_NEW_FILES),
        ("tasks leak", tasks_left > 0),
        ("no fault was injected", not faults.made),
        ("the sidecar never decided", not ledger.origins["sidecar"]),
    )
    return SoakReport(
        seconds=seconds,
        seed=seed,
        fails_open=fails_open,
        requests=ledger.requests,
        plans_by_origin=dict(ledger.origins),
        cancelled=ledger.cancelled,
        faults=dict(faults.made),
        unexpected_exceptions=dict(ledger.errors),
        internal_errors=internal_errors,
        wrong_ids=ledger.wrong_ids,
        missing_ids=ledger.missing_ids,
        moved_ranks=ledger.moved_ranks,
        finishes_lost=lost,
        plan_p50_ms=float(np.percentile(latencies_ms, 50)),
        plan_p99_ms=float(np.percentile(latencies_ms, 99)),
        plan_longest_ms=ledger.longest_s * 1_000,
        loop_longest_delay_ms=gauge.longest_delay_s * 1_000,
        client_growth_mib=gauge.client_growth_mib,
        client_slope_mib_per_min=gauge.client_slope_mib_per_min,
        sidecar_growth_mib=sidecar_growth,
        sidecar_slope_mib_per_min=gauge.sidecar_slope_mib_per_min,
        new_files=new_files,
        tasks_left=tasks_left,
        fail_open_reasons=stats.get("fail_open", {}),
        complaints=tuple(complaint for complaint, holds in checks if holds),
    )
