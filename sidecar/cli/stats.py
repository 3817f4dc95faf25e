"""`stats`: the counters of a running sidecar."""

from __future__ import annotations

from typing import Any

import click

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.cli.connection import add_connection_options, make_connection


@click.command()
@add_connection_options
def stats(**options: Any) -> None:
    """Show the counters since the start, one a line."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        answer = stub.GetStats(admin_pb2.GetStatsRequest(), timeout=connection.timeout_s)
    click.echo(f"started_at {answer.started_at.ToJsonString()}")
    click.echo(f"open_streams {answer.open_streams}")
    for counter in answer.counters:
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(counter.labels.items()))
        series = f"{counter.name}{{{labels}}}" if labels else counter.name
        click.echo(f"{series} {counter.value}")
