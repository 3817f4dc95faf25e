"""`policy`: shows the default policy, and checks a file before a sidecar has to."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path

import click

from sidecar.cli.exit_codes import exit_with_faults
from sidecar.fault import ConfigurationError
from sidecar.policy.file import load_policy
from sidecar.policy.holder import activate


@click.group(invoke_without_command=True)
@click.option("--print-default", is_flag=True, help="Print the default policy, with every key explained.")
@click.pass_context
def policy(context: click.Context, *, print_default: bool) -> None:
    """Show and check policies."""
    if print_default:
        click.echo(files("sidecar.policy").joinpath("default_policy.yaml").read_text(encoding="utf-8"), nl=False)
    elif context.invoked_subcommand is None:
        click.echo(context.get_help())


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say everything that is wrong with FILE; exit code 2 if anything is."""
    try:
        content = load_policy(file)
    except ConfigurationError as error:
        exit_with_faults(error.faults)
    active = activate(content, str(file))
    click.echo(f"{file}: ok")
    click.echo(f"  policy revision  {active.compiled.revision}")
    click.echo(f"  identity epoch   {active.compiled.identity_epoch}")
    if active.changes_at is not None:
        after = activate(content, str(file), now_s=active.changes_at)
        moment = datetime.fromtimestamp(active.changes_at, timezone.utc).isoformat()
        click.echo(f"  from {moment}: identity epoch {after.compiled.identity_epoch}")
