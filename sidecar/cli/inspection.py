"""Commands that inspect a running sidecar: `decision`, `stats` and `probe`."""

from __future__ import annotations

import sys
from typing import Any

import click
from google.protobuf.json_format import MessageToJson
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.cli.connection import add_connection_options, make_connection


@click.command()
@click.option("--request", "is_request", is_flag=True, help="NAME is a request id.")
@click.argument("name")
@add_connection_options
def decision(name: str, is_request: bool, **options: Any) -> None:
    """Show a decision by its id, or the latest decision about a request."""
    connection = make_connection(**options)
    by = {"request_id": name} if is_request else {"decision_id": name}
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        response = stub.GetDecision(admin_pb2.GetDecisionRequest(**by), timeout=connection.timeout_s)
    click.echo(MessageToJson(response, preserving_proto_field_name=True))


@click.command()
@add_connection_options
def stats(**options: Any) -> None:
    """Show the open streams and the metrics, one a line."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        response = stub.GetStats(admin_pb2.GetStatsRequest(), timeout=connection.timeout_s)
    click.echo(f"started_at {response.started_at.ToJsonString()}")
    for stream in response.streams:
        opened_at = stream.opened_at.ToJsonString()
        click.echo(f"stream {stream.worker_id} client {stream.client_version} since {opened_at}")
    for metric in response.metrics:
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(metric.labels.items()))
        series = f"{metric.name}{{{labels}}}" if labels else metric.name
        click.echo(f"{series} {metric.value:.10g}")


@click.command()
@add_connection_options
def probe(**options: Any) -> None:
    """Exit with 0 if the sidecar is serving, with 1 if it is not or can't be reached."""
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        response = stub.Check(health_pb2.HealthCheckRequest(), timeout=connection.timeout_s)
    click.echo(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
    sys.exit(0 if response.status == health_pb2.HealthCheckResponse.SERVING else 1)
