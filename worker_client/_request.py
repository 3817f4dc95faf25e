"""Reads a worker's request in the shape of Dynamo's `PreprocessedRequest` (releases 1.1 to 1.6).

Nothing here raises or changes the request: every field may be missing, null or of another type.
Source of the shapes: requests captured at real workers, tests/data/README.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routing_hints import tokens
from routing_hints.limits import MAX_DP_SIZE, MAX_ENTRIES, MAX_ID_BYTES, MAX_MODEL_BYTES, MAX_UINT32
from routing_hints.vocabulary import Phase, RequestKind
from worker_client._untrusted_input import TextReader, as_count, as_mapping, call_method, dig, read_attribute

HEALTH_CHECK_KEY = "_HEALTH_CHECK"
"""Key that marks a probe of Dynamo's health check. Source: dynamo.health_check of Dynamo 1.6.1."""
MAX_RANK = MAX_DP_SIZE - 1
_PHASES: Mapping[int, Phase] = {int(member): member for member in Phase}
_KINDS = frozenset(int(member) for member in RequestKind)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Dynamo's `agent_context`; a field that is absent or not text is empty."""

    session_id: str = ""
    parent_session_id: str = ""
    session_final: bool | None = None
    trajectory_id: str = ""
    parent_trajectory_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionControl:
    """Dynamo's `routing.session_control`; `timeout` in seconds, 0 if absent."""

    session_id: str = ""
    action: str = ""
    timeout: int = 0


@dataclass(slots=True)
class RequestFacts:
    """The fields of one request that a decision may depend on.

    Attributes:
        router_rank: the attention-DP rank that the router chose for this phase; not checked against dp_size.
        prefill_rank: the rank that computed the prompt, as reported by the prefill worker (decode only).
        prefill_instance: the prefill worker that `prefill_rank` belongs to; empty if unknown.
        prefill_cached_tokens: prompt tokens that the prefill engine found in its KV cache (decode only).
        notices: tokens for what was dropped while reading.
    """

    phase: Phase = Phase.UNSPECIFIED
    kind: RequestKind = RequestKind.NORMAL
    request_id: str = ""
    model: str = ""
    tenant: str = ""
    prompt_tokens: int = 0
    traceparent: str = ""
    conversation_id: str = ""
    agent_context: AgentContext | None = None
    session_control: SessionControl | None = None
    headers: dict[str, str] = field(default_factory=dict)
    metadata: Mapping[Any, Any] = field(default_factory=dict)
    annotations: tuple[str, ...] = ()
    body: Mapping[Any, Any] = field(default_factory=dict)
    router_rank: int | None = None
    prefill_rank: int | None = None
    prefill_instance: str = ""
    prefill_cached_tokens: int | None = None
    notices: list[str] = field(default_factory=list)


def read_request(
    request: object,
    context: object,
    *,
    phase: object,
    headers: object = None,
    body: object = None,
    tenant: object = None,
    kind: object = None,
) -> RequestFacts:
    """Returns the facts of one request; see `RoutingHintClient.plan` for the arguments."""
    source = as_mapping(request)
    routing = as_mapping(source.get("routing"))
    agent = as_mapping(source.get("agent_context"))
    body_fields = as_mapping(body)
    facts = RequestFacts()
    text = TextReader(facts.notices)
    prefill_result = as_mapping(source.get("prefill_result"))
    facts.phase = _read_phase(phase, bool(prefill_result))
    facts.kind = _read_kind(kind, source)
    facts.request_id = text.read(call_method(context, "id"), limit=MAX_ID_BYTES)
    facts.model = text.read_first(source.get("model"), body_fields.get("model"), limit=MAX_MODEL_BYTES)
    facts.prompt_tokens = _count_tokens(source.get("token_ids"))
    facts.headers = _read_headers(text, headers, agent.get("agent_headers"))
    trace = as_mapping(call_method(context, "trace_headers"))
    facts.traceparent = text.read_first(
        trace.get("traceparent"), facts.headers.get("traceparent"), limit=MAX_ID_BYTES
    )
    facts.tenant = _read_tenant(text, tenant, source, routing, facts.headers)
    params = as_mapping(body_fields.get("conversation_params"))
    params = params or as_mapping(source.get("conversation_params"))
    facts.conversation_id = text.read(_spell_number(params.get("conversation_id")))
    if agent:
        final = agent.get("session_final")
        facts.agent_context = AgentContext(
            session_id=text.read(agent.get("session_id")),
            parent_session_id=text.read(agent.get("parent_session_id")),
            session_final=final if isinstance(final, bool) else None,
            trajectory_id=text.read(agent.get("trajectory_id")),
            parent_trajectory_id=text.read(agent.get("parent_trajectory_id")),
        )
    control = as_mapping(routing.get("session_control"))
    if control:
        facts.session_control = SessionControl(
            session_id=text.read(control.get("session_id")),
            action=text.read(control.get("action"), limit=MAX_ID_BYTES),
            timeout=as_count(control.get("timeout"), most=2**63) or 0,
        )
    facts.metadata = as_mapping(read_attribute(context, "metadata"))
    facts.annotations = _read_annotations(text, source.get("annotations"))
    facts.body = body_fields
    facts.router_rank = _read_rank(routing.get("dp_rank"), facts.notices)
    if prefill_result:
        _read_prefill_result(facts, prefill_result, routing)
    return facts


def _spell_number(value: object) -> object:
    """Returns a number as text and anything else unchanged, as TensorRT-LLM's own HTTP server does.

    Source: `ConversationParams` of `tensorrt_llm/serve/openai_protocol.py`.
    """
    try:
        return str(value) if isinstance(value, (int, float)) else value
    except ValueError:
        return value  # Python does not convert integers of more than 4,300 digits


def _read_phase(phase: object, has_prefill_result: bool) -> Phase:
    known = _PHASES.get(phase, Phase.UNSPECIFIED) if isinstance(phase, int) else Phase.UNSPECIFIED
    if known is Phase.DECODE and not has_prefill_result:
        return Phase.AGGREGATED  # conditional disaggregation: this worker computes the prompt itself
    return known


def _read_kind(kind: object, source: Mapping[Any, Any]) -> RequestKind:
    if source.get(HEALTH_CHECK_KEY) is True:
        return RequestKind.HEALTH_CHECK
    if isinstance(kind, int) and kind in _KINDS:
        return RequestKind(kind) or RequestKind.NORMAL
    return RequestKind.NORMAL


def _count_tokens(token_ids: object) -> int:
    if isinstance(token_ids, (bytes, bytearray, memoryview)):
        return len(token_ids) // 4  # DYN_TOKEN_IDS_AS_BYTES packs them as 32-bit integers
    try:
        return min(len(token_ids), MAX_UINT32)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  an untrusted object may raise anything
        return 0


def _read_headers(text: TextReader, *given: object) -> dict[str, str]:
    """Returns the first value of each header by lower-case name; earlier arguments take precedence."""
    headers: dict[str, str] = {}
    for pairs in given:
        for name, value in _header_pairs(pairs):
            key = text.read(name, limit=MAX_ID_BYTES).lower()
            if not key or key in headers:
                continue
            if len(headers) == MAX_ENTRIES:
                text.add_notice(tokens.HEADERS_OVER_LIMIT_DROPPED)
                return headers
            headers[key] = text.read(value if type(value) is str else _first_value(value))
    return headers


def _header_pairs(pairs: object) -> Iterable[tuple[object, object]]:
    if isinstance(pairs, (list, tuple)):
        return [(pair[0], pair[1]) for pair in pairs if isinstance(pair, (tuple, list)) and len(pair) == 2]
    return as_mapping(pairs).items()


def _first_value(value: object) -> object:
    """Returns the first of a header's values if it has several."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return None if isinstance(first, (list, tuple)) else first


def _read_tenant(
    text: TextReader,
    tenant: object,
    source: Mapping[Any, Any],
    routing: Mapping[Any, Any],
    headers: Mapping[str, str],
) -> str:
    nvext = as_mapping(as_mapping(source.get("extra_args")).get("nvext"))
    for value in (tenant, nvext.get("cache_salt"), routing.get("cache_salt"), headers.get("x-tenant-id")):
        if value is not None and (found := text.read(value).strip()):
            return found
    return ""


def _read_annotations(text: TextReader, annotations: object) -> tuple[str, ...]:
    if not isinstance(annotations, (list, tuple)):
        return ()
    if len(annotations) > MAX_ENTRIES:
        text.add_notice(tokens.ANNOTATIONS_OVER_LIMIT_DROPPED)
    return tuple(filter(None, (text.read(entry) for entry in annotations[:MAX_ENTRIES])))


def _read_rank(rank: object, notices: list[str]) -> int | None:
    found = as_count(rank, most=MAX_RANK)
    if found is None and rank is not None:
        notices.append(tokens.ROUTER_RANK_OUT_OF_RANGE)
    return found


def _read_prefill_result(
    facts: RequestFacts, prefill_result: Mapping[Any, Any], routing: Mapping[Any, Any]
) -> None:
    params = as_mapping(prefill_result.get("disaggregated_params"))
    facts.prefill_rank = as_count(params.get("ctx_dp_rank"), most=MAX_RANK)
    workers = (routing.get("prefill_worker_id"), params.get("worker_id"))
    facts.prefill_instance = next(
        (str(worker) for worker in workers if worker and isinstance(worker, (int, str))), ""
    )
    facts.prefill_cached_tokens = as_count(dig(prefill_result, "prompt_tokens_details.cached_tokens"))
