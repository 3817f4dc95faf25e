"""`policy`: shows policies, and checks a policy file before a sidecar loads it."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from routing_hints.errors import ConfigurationError
from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.cli.connection import add_connection_options, exit_with_problems, make_connection
from sidecar.policy.file import load_policy
from sidecar.policy.holder import activate


@click.group(invoke_without_command=True)
@click.option("--print-default", is_flag=True, help="Print the default policy, with every key explained.")
@click.pass_context
def policy(context: click.Context, *, print_default: bool) -> None:
    """Show and check policies."""
    if print_default:
        click.echo(
            files("sidecar.policy").joinpath("default_policy.yaml").read_text(encoding="utf-8"), nl=False
        )
    elif context.invoked_subcommand is None:
        click.echo(context.get_help())


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Report every problem of FILE; exit code 2 if there is one."""
    try:
        content = load_policy(file)
    except ConfigurationError as error:
        exit_with_problems(error.problems)
    active = activate(content, str(file))
    click.echo(f"{file}: ok")
    click.echo(f"  policy revision  {active.compiled.revision}")
    click.echo(f"  identity epoch   {active.compiled.identity_epoch}")
    if active.changes_at is not None:
        after = activate(content, str(file), now_s=active.changes_at)
        moment = datetime.fromtimestamp(active.changes_at, timezone.utc).isoformat()
        click.echo(f"  from {moment}: identity epoch {after.compiled.identity_epoch}")


@policy.command("show")
@add_connection_options
def show_policy(**options: Any) -> None:
    """Show the policy in force as YAML; comments state its revision and origin."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        response = stub.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=connection.timeout_s)
    click.echo(f"# revision {response.revision}, identity epoch {response.identity_epoch}")
    click.echo(f"# from {response.origin}, since {response.loaded_at.ToJsonString()}")
    for line in response.last_error.splitlines():
        click.echo(f"# the newest file was rejected: {line}")
    click.echo(response.yaml, nl=False)
