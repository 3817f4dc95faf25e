"""`conformance`: sends the vectors to a running sidecar and reports the differences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import click
import grpc
import yaml

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from sidecar.cli.connection import BAD_CONFIGURATION, add_connection_options, make_connection
from sidecar.conformance.check import list_differences
from sidecar.conformance.vector import Vector, load_policies, load_vectors
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy

_Enrich: TypeAlias = Callable[[service_pb2.EnrichRequest], service_pb2.EnrichResponse]


@click.command()
@click.option(
    "--policy",
    "policy_name",
    type=click.Choice(sorted(load_policies())),
    help="The sidecar's identity policy.  [default: recognized by its identity epoch]",
)
@click.option("--print-policy", is_flag=True, help="Print the policy file for --policy and exit.")
@add_connection_options
def conformance(policy_name: str | None, *, print_policy: bool, **options: Any) -> None:
    """Check a sidecar against the test vectors of the identity rules.

    Only the vectors of the sidecar's own identity policy are sent. Exit code 1 if a decision differs, 2 if
    that policy is unknown.
    """
    if print_policy:
        part = load_policies()[policy_name or "default"].model_dump(mode="json")
        click.echo(yaml.safe_dump({"identity": part}, sort_keys=False), nl=False)
        return
    connection = make_connection(**options)
    with connection.open() as channel:
        stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
        enrich: _Enrich = partial(stub.Enrich, timeout=connection.timeout_s)
        name = policy_name or _recognize_policy(enrich)
        vectors = [vector for vector in load_vectors() if vector.policy == name]
        failed = [vector for vector in vectors if not _check(enrich, vector)]
    click.echo(f"{len(vectors) - len(failed)} of {len(vectors)} vectors of policy {name} conform")
    sys.exit(1 if failed else 0)


def _recognize_policy(enrich: _Enrich) -> str:
    epoch = enrich(service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL)).identity_epoch
    for name, identity in load_policies().items():
        if compile_policy(Policy(identity=identity)).identity_epoch == epoch:
            return name
    click.echo(f"no known policy has identity epoch {epoch or 'none'}; name it with --policy", err=True)
    sys.exit(BAD_CONFIGURATION)


def _check(enrich: _Enrich, vector: Vector) -> bool:
    try:
        differences = list_differences(vector, enrich(vector.request))
    except grpc.RpcError as error:
        differences = [f"refused: {error.code().name}: {error.details()}"]
    for difference in differences:
        click.echo(f"{vector}\n  {difference}\n  because {vector.why}", err=True)
    return not differences
