"""`decision`: one of the last decisions of a running sidecar, and what became of it."""

from __future__ import annotations

from typing import Any

import click
from google.protobuf.json_format import MessageToJson

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.cli.connection import add_connection_options, make_connection


@click.command()
@click.option("--request", "is_request", is_flag=True, help="NAME is a request's id.")
@click.argument("name")
@add_connection_options
def decision(name: str, is_request: bool, **options: Any) -> None:
    """Show a decision by its id, or the newest one about a request."""
    connection = make_connection(**options)
    by = {"request_id": name} if is_request else {"decision_id": name}
    with connection.open() as channel:
        stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        answer = stub.GetDecision(admin_pb2.GetDecisionRequest(**by), timeout=connection.timeout_s)
    click.echo(MessageToJson(answer, preserving_proto_field_name=True))
