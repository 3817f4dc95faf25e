"""Diagnoses whether affinity can act in one phase of a worker, and if not, what to change."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from routing_hints import tokens
from routing_hints.address import parse_address
from routing_hints.vocabulary import Phase, RankDirective, RequestKind
from worker_client import _codec, _stub
from worker_client._config import Affinity, ClientConfig
from worker_client._configuration_check import Finding, compare_engine_args, compare_variables
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams, assemble_params
from worker_client._gate import apply_gate
from worker_client._local_rule import resolve_locally
from worker_client._model import ClientPolicy, Decision
from worker_client._plan_reporter import explain_unattached
from worker_client._request import AgentContext, RequestFacts, SessionControl

_TIMEOUT_S = 5.0
_MAX_PROBES = 200  # ids to try until one is in the policy's rollout
_HEADERS = ("x-dynamo-session-id", "x-session-id")
_OWNERS = {
    RankDirective.WITHHOLD: "the engine's own router",
    RankDirective.PLACE: "the sidecar",
    RankDirective.FORWARD: "the upstream router if it chooses one, else the engine",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of `diagnose`.

    Attributes:
        facts: names and values, in the order to print.
        findings: what is wrong; empty if nothing is.
        can_act: whether affinity can keep conversations on their rank in this phase.
    """

    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    can_act: bool


async def diagnose(
    config: ClientConfig, engine_args: Mapping[str, Any] | None, phase: Phase, environ: Mapping[str, str]
) -> Diagnosis:
    """Returns the diagnosis of one phase; calls the sidecar only if a request of this engine would.

    Args:
        config: the worker's settings.
        engine_args: the arguments of the engine's `LLM`; None if they are unknown.
        phase: the worker's phase.
        environ: the environment that `config` was read from.
    """
    profile = EngineProfile.detect(_Engine(engine_args) if engine_args is not None else None)
    gated = apply_gate(config, profile)
    facts = [*_describe_engine(profile), *_describe_settings(config, environ)]
    findings = [*compare_variables(environ), *compare_engine_args(engine_args, profile)]
    if gated.problem:
        findings.append(Finding(gated.problem, "make the setting and the engine's config agree"))
    if config.affinity is Affinity.OFF:
        findings.append(
            Finding("affinity is off: no sidecar is called, no request changed", "set it to auto or on")
        )
    if gated.closed:
        return Diagnosis(tuple(facts), tuple(findings), can_act=False)
    is_unavailable = False
    with_id, without_id = (_make_facts(phase, session, gated.profile) for session in ("doctor", ""))
    try:
        async with grpc.aio.insecure_channel(
            parse_address(config.target).grpc_target, options=_stub.CHANNEL_OPTIONS
        ) as channel:
            policy = await _stub.get_policy(channel, _TIMEOUT_S)
            if policy.last_error:
                findings.append(
                    Finding(f"the sidecar keeps an older policy: {policy.last_error}", "fix the policy file")
                )
            decision = await _explain(channel, with_id, gated.profile)
            decision_without_id = await _explain(channel, without_id, gated.profile)
            facts.append(("sidecar", f"available, policy {policy.revision} ({policy.origin})"))
    except grpc.aio.AioRpcError as error:
        reason = _stub.describe_status(error.code(), error.details() or "")
        is_unavailable = True
        facts.append(("sidecar", f"unavailable ({reason}); the local rule decides"))
        findings.append(Finding(f"the sidecar is unavailable: {reason}", tokens.advise(reason)))
        decision = resolve_locally(with_id, gated.profile, ClientPolicy())
        decision_without_id = resolve_locally(without_id, gated.profile, ClientPolicy())
    params = _assemble(decision, gated.profile)
    acts = params.id_attached or params.applied_directive is not RankDirective.FORWARD
    if not acts:
        reason = params.reason or next(iter(decision.notices), "") or explain_unattached(gated.profile)
        findings.append(
            Finding(f"no id is attached and no rank placed: {reason}", _advise(reason, engine_args))
        )
    facts += [
        ("with a conversation", _describe_params(params)),
        ("without one", _describe_params(_assemble(decision_without_id, gated.profile))),
        ("owner of the rank", f"{_OWNERS[params.applied_directive]}, on {phase.name.lower()}"),
    ]
    return Diagnosis(tuple(facts), tuple(findings), can_act=acts and not is_unavailable)


class _Engine:
    """Stands for an engine that is not running, by its arguments."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args = args


def _describe_engine(profile: EngineProfile) -> Iterator[tuple[str, str]]:
    yield "tensorrt_llm", profile.version or "not importable"
    yield "dialect", profile.dialect.name.lower()
    yield "attention-DP router", profile.adp_router.name.lower()
    yield "attention-DP ranks", str(profile.dp_size or "unknown")
    yield "requests per rank", str(profile.max_active_requests or "unknown")
    yield "sub-agent parameter", "yes" if profile.subagent_affinity else "no"
    yield "KV reuse by conversation", "yes" if profile.wants_conversation_id else "no"


def _describe_settings(config: ClientConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    def origin(*names: str) -> str:
        return next((name for name in names if environ.get(name, "").strip()), "default")

    affinity = origin("ROUTING_HINTS_AFFINITY", "DYN_ENGINE_CONV_AFFINITY")
    yield "affinity", f"{config.affinity.value} ({affinity})"
    source = origin("ROUTING_HINTS_RANK_SOURCE", "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE")
    yield "rank source", f"{config.rank_source.name.lower()} ({source})"
    yield "target", config.target


def _describe_params(params: EngineParams) -> str:
    attached = "id attached" if params.id_attached else "no id"
    return f"{attached}, rank {params.applied_directive.name.lower()}"


def _make_facts(phase: Phase, session: str, engine: EngineProfile) -> RequestFacts:
    facts = RequestFacts(phase=phase, kind=RequestKind.NORMAL, request_id="doctor", model="doctor")
    if engine.dp_size != 1:
        facts.router_rank = 0
    if session:
        _name_session(facts, session)
    return facts


def _name_session(facts: RequestFacts, session: str) -> None:
    facts.conversation_id = session
    facts.agent_context = AgentContext(session_id=session)
    facts.session_control = SessionControl(session_id=session)
    facts.headers = dict.fromkeys(_HEADERS, session)


async def _explain(channel: grpc.aio.Channel, facts: RequestFacts, engine: EngineProfile) -> Decision:
    """Returns the sidecar's decision, for a conversation in its rollout if `facts` names one."""
    for number in range(_MAX_PROBES):
        if facts.conversation_id:
            facts = copy.copy(facts)
            _name_session(facts, f"doctor-conversation-{number:04}")
        message = _codec.encode_request(facts, ClientPolicy(headers=_HEADERS), engine)
        decision = _codec.decode_decision((await _stub.explain(channel, message, _TIMEOUT_S)).decision)
        if not facts.conversation_id or tokens.OUTSIDE_ROLLOUT not in decision.notices:
            break
    return decision


def _assemble(decision: Decision, engine: EngineProfile) -> EngineParams:
    """Returns the parameters of a request whose worker passes `DisaggregatedParams`."""
    params = None
    if engine.types.disaggregated_params is not None:
        params = engine.types.disaggregated_params(request_type="context_only")
    rank = 0 if engine.dp_size != 1 else None
    return assemble_params(decision, engine, router_rank=rank, disaggregated_params=params)


def _advise(reason: str, engine_args: Mapping[str, Any] | None) -> str:
    if reason == tokens.ADP_ROUTER_UNKNOWN and engine_args is None:
        return "pass --engine-args"
    return tokens.advise(reason)
