"""The command `routing-hint-sidecar`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import click
import uvloop

from sidecar.app import run
from sidecar.cli.conformance import conformance
from sidecar.cli.conversations import conversations
from sidecar.cli.decision import decision
from sidecar.cli.exit_codes import exit_with_faults
from sidecar.cli.explain import explain
from sidecar.cli.policy import policy
from sidecar.cli.probe import probe
from sidecar.cli.show_policy import show_policy
from sidecar.cli.stats import stats
from sidecar.fault import ConfigurationError
from sidecar.policy.file import load_policy
from sidecar.policy.holder import EMBEDDED, PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.server.listener import find_obstacle
from sidecar.settings import (
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_LISTEN,
    DEFAULT_SOCKET_MODE,
    read_settings,
)
from sidecar.telemetry.logs import configure_logging


@click.group()
@click.version_option(version("routing-hint-sidecar"), prog_name="routing-hint-sidecar")
def main() -> None:
    """Tells workers which conversation a request belongs to, and what to do with its rank."""


for _command in (conformance, conversations, decision, explain, policy, probe, stats):
    main.add_command(_command)
policy.add_command(show_policy)


@main.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help=f"unix:///path or tcp://host:port; may be given several times.  [default: {DEFAULT_LISTEN}]",
)
@click.option("--policy", metavar="FILE", help="Policy file (YAML).  [default: the embedded policy]")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve /metrics, /livez and /readyz over HTTP.")
@click.option("--socket-mode", metavar="MODE", help=f"Of socket files.  [default: {DEFAULT_SOCKET_MODE:04o}]")
@click.option("--socket-group", metavar="GROUP", help="Of socket files, a name or a number.")
@click.option("--tls-cert", metavar="FILE", help="Serve TCP with TLS by this certificate chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key (PEM).")
@click.option(
    "--tls-client-ca", metavar="FILE", help="Callers must show a certificate of this authority (PEM)."
)
@click.option(
    "--drain-timeout-s",
    metavar="SECONDS",
    help=f"How long SIGTERM waits for open streams.  [default: {DEFAULT_DRAIN_TIMEOUT_S:g}]",
)
@click.option("--insecure-bind", is_flag=True, help="Permit TCP addresses without TLS that others can reach.")
def serve(**options: Any) -> None:
    """Serve until SIGTERM."""
    settings, faults = read_settings(**options)
    content = Policy()
    try:
        if settings.policy_path is not None:
            content = load_policy(settings.policy_path)
    except ConfigurationError as error:
        faults.extend(error.faults)
    if faults:
        addresses = (*settings.listen, *filter(None, (settings.metrics_listen,)))
        faults.extend(obstacle for obstacle in map(find_obstacle, addresses) if obstacle)
        exit_with_faults(faults)
    configure_logging(content.operational.logging)
    origin = EMBEDDED if settings.policy_path is None else str(settings.policy_path)
    holder = PolicyHolder(activate(content, origin))
    try:
        uvloop.run(run(settings, holder))
    except ConfigurationError as error:
        exit_with_faults(error.faults)


if __name__ == "__main__":
    main()
