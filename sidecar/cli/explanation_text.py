"""Renders an explanation as text."""

from __future__ import annotations

from collections.abc import Iterator

import click

from routing_hints.v1 import service_pb2, types_pb2

_VERDICTS = {
    service_pb2.CARRIER_VERDICT_ABSENT: "-",
    service_pb2.CARRIER_VERDICT_UNUSABLE: "UNUSABLE",
    service_pb2.CARRIER_VERDICT_TAKEN: "TAKEN",
    service_pb2.CARRIER_VERDICT_OUTRANKED: "outranked",
}
_NAME_WIDTH = 44


def render_explanation(request: service_pb2.EnrichRequest, response: service_pb2.ExplainResponse) -> str:
    """Returns the whole explanation, the decision first."""
    return "\n".join(
        (
            *_render_head(request, response.decision),
            "",
            "carriers in the policy's order; the first usable one is taken",
            *map(_render_carrier, response.carriers),
            "",
            "rules; the first that matches decides",
            *(f"  {rule.rule:<{_NAME_WIDTH}}{'YES' if rule.matched else 'no'}" for rule in response.rules),
        )
    )


def _render_head(request: service_pb2.EnrichRequest, decision: service_pb2.EnrichResponse) -> Iterator[str]:
    if decision.source_detail:
        yield f"conversation  {decision.conversation_hash} (hash), named by {decision.source_detail}"
    else:
        yield "conversation  none: no carrier has a usable value"
    if decision.hints.conversation_id:
        yield f"id            {decision.hints.conversation_id} (attached)"
        if decision.hints.affinity_key != decision.hints.conversation_id:
            yield f"placed by     {decision.hints.affinity_key}, the conversation that started this one"
    else:
        yield "id            none is attached"
    directive = types_pb2.RankDirective.Name(decision.rank_directive).removeprefix("RANK_DIRECTIVE_")
    yield f"rank          {directive}: {_describe_directive(decision.rank_directive)}"
    yield f"notices       {', '.join(decision.notices) or 'none'}"
    yield f"policy        revision {decision.policy_revision}, identity epoch {decision.identity_epoch}"
    engine = request.engine
    phase = types_pb2.Phase.Name(request.phase).removeprefix("PHASE_").lower()
    dialect = types_pb2.EngineDialect.Name(engine.dialect).removeprefix("ENGINE_DIALECT_").lower()
    router = types_pb2.AdpRouter.Name(engine.adp_router).removeprefix("ADP_ROUTER_").lower()
    yield f"request       {phase} on an engine with dialect {dialect}, ADP router {router}"


def _describe_directive(directive: int) -> str:
    if directive == types_pb2.RANK_DIRECTIVE_WITHHOLD:
        return "send none, the engine's router places"
    if directive == types_pb2.RANK_DIRECTIVE_PLACE:
        return "send the sidecar's"
    return "send what the router chose, if anything"


def _render_carrier(carrier: service_pb2.CarrierTrace) -> str:
    verdict = _VERDICTS.get(carrier.verdict, "unknown")
    details = " ".join(filter(None, (carrier.reason, carrier.conversation_hash, *carrier.remarks)))
    line = f"  {carrier.name:<{_NAME_WIDTH}}{verdict:<10}{details}".rstrip()
    if carrier.verdict == service_pb2.CARRIER_VERDICT_TAKEN:
        return click.style(line, bold=True)
    return click.style(line, dim=True) if verdict == "-" else line
