"""The real sidecar on simulated time: `python -m bench.affinity.virtual_sidecar CLOCK`, set by variables.

Everything but the source of time is the command `serve` itself, over a real socket.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from bench.affinity.clock import SharedClock
from sidecar.app import Clocks, run
from sidecar.policy.file import load_policy
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.settings import read_settings
from sidecar.telemetry.logs import configure_logging


def main() -> None:
    """Serves until SIGTERM."""
    read_clock = SharedClock(Path(sys.argv[1])).read
    settings = read_settings()
    policy = load_policy(settings.policy) if settings.policy is not None else Policy()
    configure_logging(policy.operational.logging.level, policy.operational.logging.format)
    uvloop.run(run(settings, PolicyHolder(activate(policy)), Clocks(read_clock, read_clock)))


if __name__ == "__main__":
    main()
