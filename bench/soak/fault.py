"""Faults of a sidecar, injected at random moments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

from bench.process import ServerProcess

PAUSE_S = (1.0, 5.0)
"""Shortest and longest time between two faults."""
OUTAGE_S = (0.1, 2.0)
RELOAD_EVERY_S = 10.0
_POLICIES = ("router_rank_absent", "always")


class FaultInjector:
    """Kills, stops, drains and restarts a sidecar.

    Attributes:
        made: how often each fault was injected.
    """

    def __init__(self, sidecar: ServerProcess, dice: random.Random) -> None:
        self.made: Counter[str] = Counter()
        self._sidecar = sidecar
        self._dice = dice

    async def run(self) -> None:
        """Injects faults until it is cancelled; between faults the sidecar runs."""
        faults = (self._kill, self._stop, self._drain, self._remove_socket)
        while True:
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
            fault = self._dice.choice(faults)
            self.made[fault.__name__.strip("_")] += 1
            await fault()

    async def _kill(self) -> None:
        self._sidecar.kill()
        await self._outage()
        await self._sidecar.start()

    async def _stop(self) -> None:
        self._sidecar.signal(signal.SIGSTOP)
        await self._outage()
        self._sidecar.signal(signal.SIGCONT)

    async def _drain(self) -> None:
        self._sidecar.signal(signal.SIGTERM)
        await self._outage()
        self._sidecar.kill()
        await self._sidecar.start()

    async def _remove_socket(self) -> None:
        self._sidecar.socket_path.unlink(missing_ok=True)
        await self._outage()
        self._sidecar.kill()
        await self._sidecar.start()

    async def _outage(self) -> None:
        await asyncio.sleep(self._dice.uniform(*OUTAGE_S))


async def change_policy(path: Path) -> None:
    """Replaces the policy file every 10 s, until cancelled."""
    turn = 0
    while True:
        await asyncio.sleep(RELOAD_EVERY_S)
        turn += 1
        write_policy(path, turn)


def write_policy(path: Path, turn: int) -> None:
    """Writes one of two policies that differ in revision alone; the replacement is atomic."""
    text = f"operational:\n  placement:\n    when: {_POLICIES[turn % len(_POLICIES)]}\n"
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)
