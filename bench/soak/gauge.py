"""Memory, file descriptors and the event loop's delay over the time of a soak."""

from __future__ import annotations

import asyncio
import contextlib
import statistics

import psutil

from bench.process import ServerProcess

EVERY_S = 1.0
BEAT_S = 0.01
MIB = 1024 * 1024


class Gauge:
    """Samples this process and the sidecar once a second."""

    def __init__(self, sidecar: ServerProcess) -> None:
        self._sidecar = sidecar
        self._me = psutil.Process()
        self._client_mib: list[float] = []
        self._sidecar_mib: list[float] = []
        self.client_files: list[int] = []
        self.longest_delay_s = 0.0

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self._client_mib.append(self._me.memory_info().rss / MIB)
            self.client_files.append(self._me.num_fds())
            with contextlib.suppress(RuntimeError, psutil.NoSuchProcess):  # where it is down
                self._sidecar_mib.append(self._sidecar.rss_bytes() / MIB)
            await asyncio.sleep(EVERY_S)

    async def watch_loop(self) -> None:
        """Follows the event loop's delay until cancelled; no plan is on time in a delayed loop."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.longest_delay_s = max(self.longest_delay_s, loop.time() - due_s)

    @property
    def client_growth_mib(self) -> float:
        """Growth of this process over the second half, once every table is as full as it gets."""
        return _end(self._client_mib) - _middle(self._client_mib)

    @property
    def client_slope_mib_per_min(self) -> float:
        """Least-squares slope of this process's memory over the second half."""
        return _slope_per_min(self._client_mib[len(self._client_mib) // 2 :])

    @property
    def sidecar_most_mib(self) -> float:
        """The most that the sidecar held in any of its lives."""
        return max(self._sidecar_mib)

    @property
    def sidecar_slope_mib_per_min(self) -> float:
        """Least-squares slope over the second half, across restarts."""
        return _slope_per_min(self._sidecar_mib[len(self._sidecar_mib) // 2 :])


def _middle(samples: list[float]) -> float:
    return statistics.median(samples[len(samples) // 2 : len(samples) * 6 // 10 + 1])


def _end(samples: list[float]) -> float:
    return statistics.median(samples[len(samples) * 9 // 10 :])


def _slope_per_min(samples: list[float]) -> float:
    if len(samples) < 2:
        return 0.0
    return statistics.linear_regression(range(len(samples)), samples).slope * 60 / EVERY_S
