"""What a million distinct conversations leave in memory, on both sides."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.hot_path.load_generator import open_client
from bench.process import ServerProcess, start_sidecar
from bench.workload import ENGINE, Workload

IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of resident memory, in MiB.

    Attributes:
        sidecar_mib, client_mib: after `sessions` distinct sessions, against before the first.
        sidecar_idle_mib: of the sidecar before the first.
    """

    sessions: int
    sidecar_idle_mib: float
    sidecar_mib: float
    client_mib: float


async def measure_growth(sessions: int) -> Growth:
    """Plans one request of each of `sessions` sessions, against a fresh sidecar."""
    with tempfile.TemporaryDirectory(prefix="rh-bench-") as name:
        async with start_sidecar(Path(name)) as sidecar:
            return await _measure_growth(sidecar, sessions)


async def _measure_growth(sidecar: ServerProcess, sessions: int) -> Growth:
    requests = Workload(sessions, 5).requests()
    me = psutil.Process()
    idle, client_before = sidecar.rss_bytes(), me.memory_info().rss
    async with open_client(sidecar.socket_path) as client:

        async def repeat() -> None:
            for _ in range(sessions // IN_FLIGHT):
                engine_request = next(requests)
                async with client.plan(
                    engine_request.request,
                    engine_request.context,
                    phase=engine_request.phase,
                    engine=ENGINE,
                    headers=engine_request.headers,
                ):
                    pass

        await asyncio.gather(*(repeat() for _ in range(IN_FLIGHT)))
        after, client_after = sidecar.rss_bytes(), me.memory_info().rss
    mib = 1024 * 1024
    return Growth(sessions, idle / mib, (after - idle) / mib, (client_after - client_before) / mib)
