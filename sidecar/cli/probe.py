"""`probe`: whether a sidecar serves, as an exit code; a container's health check."""

from __future__ import annotations

import sys
from typing import Any

import click
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sidecar.cli.connection import add_connection_options, make_connection


@click.command()
@add_connection_options
def probe(**options: Any) -> None:
    """Exit 0 if the sidecar serves, 1 if it does not or can't be reached."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=connection.timeout_s)
    click.echo(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    sys.exit(0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1)
