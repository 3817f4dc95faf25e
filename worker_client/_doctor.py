"""Says whether affinity can act on one leg of a worker, and if not, what to change."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from worker_client import _stub, codec
from worker_client._config import Affinity, ClientConfig, grpc_target
from worker_client._configuration_check import Finding, compare_engine_args, compare_variables
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams, assemble_params
from worker_client._gate import apply_gate
from worker_client._local_rule import resolve_locally
from worker_client._model import (
    Answer,
    ClientPolicy,
    Phase,
    RankDirective,
    RequestKind,
)
from worker_client._once_logger import advise
from worker_client._plan_reporter import explain_unattached
from worker_client._request import AgentContext, RequestFacts, SessionControl

_TIMEOUT_S = 5.0
_MAX_PROBES = 200  # ids to try until one is within the policy's rollout
_HEADERS = ("x-dynamo-session-id", "x-session-id")
_OWNERS = {
    RankDirective.WITHHOLD: "the engine's own router",
    RankDirective.PLACE: "the sidecar",
    RankDirective.FORWARD: "the router in front where it chooses one, else the engine",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found.

    Attributes:
        facts: name and value, in the order to print.
        findings: what is wrong; empty where all agrees.
        can_act: whether a conversation's request on this leg keeps its rank by this project.
    """

    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    can_act: bool


async def diagnose(
    config: ClientConfig, engine_args: Mapping[str, Any] | None, phase: Phase, environ: Mapping[str, str]
) -> Diagnosis:
    """Returns the diagnosis of one leg, asking the sidecar once it is clear that somebody would.

    Args:
        config: the worker's settings.
        engine_args: the arguments of the engine's `LLM`; None where they are not known.
        phase: the leg.
        environ: what `config` was read from.
    """
    profile = EngineProfile.detect(_Engine(engine_args) if engine_args is not None else None)
    gated = apply_gate(config, profile)
    facts = [*_describe_engine(profile), *_describe_settings(config, environ)]
    findings = [*compare_variables(environ), *compare_engine_args(engine_args, profile)]
    if gated.fault:
        findings.append(Finding(gated.fault, "make the setting and the engine's config agree"))
    if config.affinity is Affinity.OFF:
        findings.append(
            Finding("affinity is off: nothing is asked and nothing changed", "set it to auto or on")
        )
    if gated.closed:
        return Diagnosis(tuple(facts), tuple(findings), can_act=False)
    is_silent = False
    with_id, without_id = (_make_facts(phase, session, gated.profile) for session in ("doctor", ""))
    try:
        async with grpc.aio.insecure_channel(
            grpc_target(config.target), options=_stub.CHANNEL_OPTIONS
        ) as channel:
            policy = await _stub.get_policy(channel, _TIMEOUT_S)
            if policy.last_error:
                findings.append(
                    Finding(f"the sidecar keeps an older policy: {policy.last_error}", "mend the policy file")
                )
            answer = await _ask(channel, with_id, gated.profile)
            answer_without_id = await _ask(channel, without_id, gated.profile)
            facts.append(("sidecar", f"answers, policy {policy.revision} ({policy.origin})"))
    except grpc.aio.AioRpcError as error:
        reason = _stub.describe_status(error.code(), error.details() or "")
        is_silent = True
        facts.append(("sidecar", f"does not answer ({reason}); the worker's own rule decides"))
        findings.append(Finding(f"the sidecar does not answer: {reason}", advise(reason)))
        answer = resolve_locally(with_id, gated.profile, ClientPolicy())
        answer_without_id = resolve_locally(without_id, gated.profile, ClientPolicy())
    params = _assemble(answer, gated.profile)
    acts = params.id_attached or params.applied_directive is not RankDirective.FORWARD
    if not acts:
        reason = params.reason or next(iter(answer.notices), "") or explain_unattached(gated.profile)
        findings.append(
            Finding(f"no id is attached and no rank placed: {reason}", _advise(reason, engine_args))
        )
    facts += [
        ("with a conversation", _describe_params(params)),
        ("without one", _describe_params(_assemble(answer_without_id, gated.profile))),
        ("owner of the rank", f"{_OWNERS[params.applied_directive]}, on {phase.name.lower()}"),
    ]
    return Diagnosis(tuple(facts), tuple(findings), can_act=acts and not is_silent)


class _Engine:
    """An engine that is not running: its arguments alone."""

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


async def _ask(channel: grpc.aio.Channel, facts: RequestFacts, engine: EngineProfile) -> Answer:
    """Returns what the sidecar would say; of a conversation that its rollout includes, if it has one."""
    for number in range(_MAX_PROBES):
        if facts.conversation_id:
            facts = copy.copy(facts)
            _name_session(facts, f"doctor-conversation-{number:04}")
        message = codec.encode_request(facts, ClientPolicy(headers=_HEADERS), engine)
        answer = codec.decode_answer((await _stub.explain(channel, message, _TIMEOUT_S)).answer)
        if not facts.conversation_id or "outside-rollout" not in answer.notices:
            break
    return answer


def _assemble(answer: Answer, engine: EngineProfile) -> EngineParams:
    """Returns the parameters that a request would get whose worker passes `DisaggregatedParams`."""
    params = None
    if engine.types.disaggregated_params is not None:
        params = engine.types.disaggregated_params(request_type="context_only")
    rank = 0 if engine.dp_size != 1 else None
    return assemble_params(answer, engine, router_rank=rank, disaggregated_params=params)


def _advise(reason: str, engine_args: Mapping[str, Any] | None) -> str:
    if reason == "adp-router-unknown" and engine_args is None:
        return "pass --engine-args"
    return advise(reason)
