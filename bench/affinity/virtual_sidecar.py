"""The real sidecar on simulated time: `python -m bench.affinity.virtual_sidecar CLOCK serve ...`.

Everything but the source of time is the command itself, with its own options, over a real socket.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.affinity.clock import SharedClock
from sidecar import app
from sidecar.__main__ import main


class _SimulatedTime:
    """What `sidecar.app` asks of the module `time`."""

    def __init__(self, clock: SharedClock) -> None:
        self.monotonic = clock.read
        self.time = clock.read


if __name__ == "__main__":
    app.time = _SimulatedTime(SharedClock(Path(sys.argv[1])))  # type: ignore[assignment, attr-defined]
    main(sys.argv[2:])
