"""The command `routing-hint-sidecar`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import NoReturn

import click
import uvloop

from sidecar.app import run
from sidecar.fault import ConfigurationError, Fault
from sidecar.listener import find_obstacle
from sidecar.logs import configure_logging
from sidecar.policy import Policy
from sidecar.policy_file import EMBEDDED, PolicyHolder, activate, load_policy
from sidecar.settings import DEFAULT_DRAIN_TIMEOUT_S, DEFAULT_LISTEN, read_settings

BAD_CONFIGURATION = 2


@click.group()
@click.version_option(version("routing-hint-sidecar"), prog_name="routing-hint-sidecar")
def main() -> None:
    """Tells workers which conversation a request belongs to, and what to do with its rank."""


@main.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help=f"unix:///path or tcp://host:port; may be given several times.  [default: {DEFAULT_LISTEN}]",
)
@click.option("--policy", metavar="FILE", help="Policy file (YAML).  [default: the embedded policy]")
@click.option(
    "--drain-timeout-s",
    metavar="SECONDS",
    help=f"How long SIGTERM waits for open streams.  [default: {DEFAULT_DRAIN_TIMEOUT_S:g}]",
)
@click.option("--insecure-bind", is_flag=True, help="Permit TCP addresses that others can reach.")
def serve(
    listen: tuple[str, ...], policy: str | None, drain_timeout_s: str | None, insecure_bind: bool
) -> None:
    """Serve until SIGTERM."""
    settings, faults = read_settings(
        listen=listen, policy=policy, drain_timeout_s=drain_timeout_s, insecure_bind=insecure_bind
    )
    content = Policy()
    try:
        if settings.policy_path is not None:
            content = load_policy(settings.policy_path)
    except ConfigurationError as error:
        faults.extend(error.faults)
    if faults:
        faults.extend(obstacle for obstacle in map(find_obstacle, settings.listen) if obstacle)
        _exit_with(faults)
    configure_logging(content.operational.logging)
    origin = EMBEDDED if settings.policy_path is None else str(settings.policy_path)
    holder = PolicyHolder(activate(content, origin))
    try:
        uvloop.run(run(settings.listen, holder, settings.drain_timeout_s))
    except ConfigurationError as error:
        _exit_with(error.faults)


def _exit_with(faults: Iterable[Fault]) -> NoReturn:
    for fault in faults:
        click.echo(str(fault), err=True)
    sys.exit(BAD_CONFIGURATION)


if __name__ == "__main__":
    main()
