"""The real sidecar with the simulation's clock: `python -m bench.affinity.virtual_sidecar SOCKET POLICY CLOCK`.

Everything but the source of time is `sidecar.app`, served over a real socket.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from bench.affinity.clock import SharedClock
from sidecar import app
from sidecar.logs import configure_logging
from sidecar.policy_file import PolicyHolder, activate, load_policy
from sidecar.settings import UnixAddress

_DRAIN_S = 1.0


class _SimulatedTime:
    """What `sidecar.app` asks of the module `time`."""

    def __init__(self, clock: SharedClock) -> None:
        self.monotonic = clock.read
        self.time = clock.read


def main(socket: str, policy: str, clock: str) -> None:
    """Serves until SIGTERM."""
    app.time = _SimulatedTime(SharedClock(Path(clock)))  # type: ignore[attr-defined]
    content = load_policy(Path(policy))
    configure_logging(content.operational.logging)
    holder = PolicyHolder(activate(content, policy))
    uvloop.run(app.run((UnixAddress(Path(socket)),), holder, _DRAIN_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
