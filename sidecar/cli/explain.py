"""`explain`: the decision about a request and its reasons, by a policy file or a running sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from routing_hints.errors import ConfigurationError
from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from sidecar.cli.connection import (
    Connection,
    add_optional_connection_options,
    exit_with_problems,
    make_connection,
)
from sidecar.cli.explanation_text import render_explanation
from sidecar.decision.decide import explain as explain_request
from sidecar.policy.file import load_policy
from sidecar.policy.holder import activate
from sidecar.policy.schema import Policy
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import decode_request
from sidecar.wire.response_codec import encode_explanation


def _choice_of(enum_type: object, prefix: str) -> click.Choice[str]:
    names: Sequence[str] = enum_type.keys()  # type: ignore[attr-defined]
    lower = (name.removeprefix(prefix).lower() for name in names)
    return click.Choice([name for name in lower if name != "unspecified"])


@click.command()
@click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="An HTTP header.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="An entry of Dynamo's metadata.")
@click.option("--annotation", multiple=True, metavar="TEXT", help="One of Dynamo's annotations.")
@click.option("--body", multiple=True, metavar="PATH=VALUE", help="A field of the body by dotted path.")
@click.option("--conversation-id", metavar="ID", help="conversation_params.conversation_id of the body.")
@click.option("--agent-session", metavar="ID", help="agent_context.session_id.")
@click.option("--agent-parent", metavar="ID", help="agent_context.parent_session_id.")
@click.option("--agent-trajectory", metavar="ID", help="agent_context.trajectory_id.")
@click.option("--agent-parent-trajectory", metavar="ID", help="agent_context.parent_trajectory_id.")
@click.option("--agent-final", is_flag=True, help="agent_context.session_final.")
@click.option("--session-control", metavar="ID", help="routing.session_control.session_id.")
@click.option("--session-action", metavar="ACTION", help="routing.session_control.action.")
@click.option(
    "--session-timeout", type=click.IntRange(0, 2**31 - 1), help="routing.session_control.timeout, s."
)
@click.option("--tenant", metavar="NAME", help="The request's tenant.")
@click.option("--phase", type=_choice_of(types_pb2.Phase, "PHASE_"), default="prefill", show_default=True)
@click.option(
    "--dialect",
    type=_choice_of(types_pb2.EngineDialect, "ENGINE_DIALECT_"),
    default="conversation_params",
    show_default=True,
)
@click.option(
    "--adp-router",
    type=_choice_of(types_pb2.AdpRouter, "ADP_ROUTER_"),
    default="conversation",
    show_default=True,
)
@click.option("--rank-source", type=_choice_of(types_pb2.RankSource, "RANK_SOURCE_"))
@click.option("--subagent-affinity", is_flag=True, help="The engine has `subagent_affinity_id`.")
@click.option("--dp-size", type=click.IntRange(0, 65_536), default=0, help="Engine's ranks; 0 if unknown.")
@click.option("--dp-rank", type=click.IntRange(0, 65_535), help="The rank that the router chose.")
@click.option("--policy", "policy_path", type=click.Path(path_type=Path), help="Policy file.")
@add_optional_connection_options
def explain(
    headers: tuple[str, ...],
    metadata: tuple[str, ...],
    annotation: tuple[str, ...],
    body: tuple[str, ...],
    conversation_id: str | None,
    agent_session: str | None,
    agent_parent: str | None,
    agent_trajectory: str | None,
    agent_parent_trajectory: str | None,
    session_control: str | None,
    session_action: str | None,
    session_timeout: int | None,
    tenant: str | None,
    phase: str,
    dialect: str,
    adp_router: str,
    rank_source: str | None,
    *,
    agent_final: bool,
    subagent_affinity: bool,
    dp_size: int,
    dp_rank: int | None,
    policy_path: Path | None,
    **options: Any,
) -> None:
    """Show every carrier, every rule and the decision for one request.

    Without --target no sidecar is needed: the policy file or the default policy is used.
    """
    if options["target"] and policy_path:
        raise click.UsageError("--target uses the running sidecar's policy; leave --policy out")
    identity = types_pb2.Identity(
        conversation_id=conversation_id or "",
        headers=dict(_split(text, ":", "--header") for text in headers),
        metadata=dict(_split(text, "=", "--metadata") for text in metadata),
        annotations=annotation,
        body=dict(_split(text, "=", "--body") for text in body),
    )
    agent_context = types_pb2.AgentContext(
        session_id=agent_session,
        parent_session_id=agent_parent,
        trajectory_id=agent_trajectory,
        parent_trajectory_id=agent_parent_trajectory,
    )
    if agent_final:
        agent_context.session_final = True
    if agent_context.ByteSize():
        identity.agent_context.CopyFrom(agent_context)
    control = types_pb2.SessionControl(
        session_id=session_control, action=session_action, timeout=session_timeout
    )
    if control.ByteSize():
        identity.session_control.CopyFrom(control)
    request = service_pb2.EnrichRequest(
        phase=f"PHASE_{phase.upper()}",
        identity=identity,
        engine=types_pb2.EngineProfile(
            dialect=f"ENGINE_DIALECT_{dialect.upper()}",
            adp_router=f"ADP_ROUTER_{adp_router.upper()}",
            rank_source=f"RANK_SOURCE_{(rank_source or 'unspecified').upper()}",
            dp_size=dp_size,
            subagent_affinity=subagent_affinity,
        ),
        hints=None if dp_rank is None else types_pb2.RoutingHints(dp_rank=dp_rank),
        tenant=tenant or "",
    )
    response = (
        _call(make_connection(**options), request)
        if options["target"]
        else _explain_offline(policy_path, request)
    )
    click.echo(render_explanation(request, response))


def _split(text: str, separator: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise click.BadParameter(f"expected a name, `{separator}` and a value", param_hint=option)
    return name.strip(), value.removeprefix(" ")


def _explain_offline(path: Path | None, message: service_pb2.EnrichRequest) -> service_pb2.ExplainResponse:
    try:
        content = Policy() if path is None else load_policy(path)
        request, identity = decode_request(message)
    except ConfigurationError as error:
        exit_with_problems(error.problems)
    except FieldError as error:
        raise click.ClickException(str(error)) from None
    return encode_explanation(
        explain_request(request._replace(identity=identity.read()), activate(content).compiled)
    )


def _call(connection: Connection, request: service_pb2.EnrichRequest) -> service_pb2.ExplainResponse:
    with connection.open() as channel:
        stub: Any = service_pb2_grpc.RoutingHintsServiceStub(channel)
        response: service_pb2.ExplainResponse = stub.Explain(
            service_pb2.ExplainRequest(request=request), timeout=connection.timeout_s
        )
    return response
