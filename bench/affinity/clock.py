"""Simulated time, shared with sidecar processes through a file.

A sidecar's idle times, half-lives and cool-downs then pass as fast as the simulation, and a seed repeats a
run exactly however busy the machine is.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SECONDS = struct.Struct("<d")
_STEPS_PER_S = 2**20
_RUN_S = 2**17
"""Longer than a run and every idle time, so that nothing of one run lives on in the next."""


def on_grid(seconds: float) -> float:
    """Returns `seconds` in whole steps, so that sums and differences of times are exact."""
    return round(seconds * _STEPS_PER_S) / _STEPS_PER_S


class SharedClock:
    """Writes the time, or reads it.

    Args:
        path: of the file; made if missing.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_SECONDS.pack(0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SECONDS.size)
        self._begin_s = 0.0

    def begin_run(self) -> int:
        """Lets a run begin at its time 0 and returns its number; the clock itself never goes back."""
        self._begin_s += _RUN_S
        self.set(0.0)
        return int(self._begin_s) // _RUN_S

    def set(self, now_s: float) -> None:
        """Sets the time since the run began."""
        _SECONDS.pack_into(self._memory, 0, self._begin_s + now_s)

    def read(self) -> float:
        """Returns the time as a sidecar sees it."""
        seconds: float = _SECONDS.unpack_from(self._memory, 0)[0]
        return seconds
