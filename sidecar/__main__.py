"""The command `routing-hint-sidecar`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import click
import uvloop

from routing_hints.errors import ConfigurationError, ConfigurationProblem
from sidecar.app import run
from sidecar.cli.conformance import conformance
from sidecar.cli.connection import exit_with_problems
from sidecar.cli.conversations import conversations
from sidecar.cli.explain import explain
from sidecar.cli.inspection import decision, probe, stats
from sidecar.cli.policy import policy
from sidecar.policy.file import load_policy
from sidecar.policy.holder import EMBEDDED, PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.server.listener import find_obstacle
from sidecar.settings import Settings, SettingsError, read_settings
from sidecar.telemetry.logs import configure_logging


@click.group()
@click.version_option(version("routing-hint-sidecar"), prog_name="routing-hint-sidecar")
def main() -> None:
    """Resolves which conversation an engine request belongs to, and what to do with its rank."""


for _command in (conformance, conversations, decision, explain, policy, probe, stats):
    main.add_command(_command)


@main.command()
def serve(**options: Any) -> None:
    """Serve until SIGTERM. Each option has a variable, such as ROUTING_HINTS_METRICS_LISTEN."""
    content = Policy()
    problems: list[ConfigurationProblem] = []
    try:
        settings = read_settings(**options)
        path, addresses = settings.policy, (*settings.listen, *filter(None, (settings.metrics_listen,)))
    except SettingsError as error:
        problems.extend(error.problems)
        path, addresses = error.policy, error.addresses
    try:
        if path is not None:
            content = load_policy(path)
    except ConfigurationError as error:
        problems.extend(error.problems)
    if problems:
        # Without other problems these are found while binding.
        exit_with_problems((*problems, *filter(None, map(find_obstacle, addresses))))
    configure_logging(content.operational.logging.level, content.operational.logging.format)
    holder = PolicyHolder(activate(content, EMBEDDED if path is None else str(path)))
    try:
        uvloop.run(run(settings, holder))
    except ConfigurationError as error:
        exit_with_problems(error.problems)


for _name, _field in reversed(Settings.model_fields.items()):
    _extra: Any = _field.json_schema_extra or {}
    serve.params.insert(
        0,
        click.Option(
            [f"--{_name.replace('_', '-')}"],
            metavar=_extra.get("metavar"),
            help=_field.description,
            multiple=_name == "listen",
            is_flag=_name == "insecure_bind",
            default=None,
        ),
    )


if __name__ == "__main__":
    main()
