"""`policy show`: the policy in force in a running sidecar."""

from __future__ import annotations

from typing import Any

import click

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.cli.connection import add_connection_options, make_connection


@click.command("show")
@add_connection_options
def show_policy(**options: Any) -> None:
    """Show the policy in force, as YAML; what is known about it stands in comments."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        answer = stub.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=connection.timeout_s)
    click.echo(f"# revision {answer.revision}, identity epoch {answer.identity_epoch}")
    click.echo(f"# from {answer.origin}, since {answer.loaded_at.ToJsonString()}")
    for line in answer.last_error.splitlines():
        click.echo(f"# the newest file was refused: {line}")
    click.echo(answer.yaml, nl=False)
