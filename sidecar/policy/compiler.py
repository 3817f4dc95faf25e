"""Compiles the policy as written into the form that a decision reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from hashlib import blake2b
from operator import or_
from typing import Any

from routing_hints.conversation_id import IdForm, Naming
from routing_hints.vocabulary import IdentitySource, IdScope, Phase
from sidecar.identity.baggage_carrier import BAGGAGE_HEADER
from sidecar.identity.carrier import FINAL_HEADER, TENANT_HEADER, Carrier, Fields
from sidecar.identity.catalogue import CARRIERS
from sidecar.identity.header_carrier import make_header_carrier
from sidecar.identity.rules import PROMPT_CACHE_KEY, IdentityRules, find_agent_session, find_prompt_cache_key
from sidecar.identity.structured_carrier import (
    AGENT_CONTEXT,
    AGENT_CONTEXT_AFFINITY_ONLY,
    AGENT_CONTEXT_WITHIN_RUN,
)
from sidecar.model import Identity
from sidecar.placement.first_rank import FIRST_RANK_POLICIES
from sidecar.placement.settings import PlacementSettings
from sidecar.policy.compiled import ROLLOUT_BUCKETS, ClientView, CompiledPolicy
from sidecar.policy.identity_schema import IdentityPolicy, OwnHeader
from sidecar.policy.schema import Operational, Policy

_PHASES = {"prefill": Phase.PREFILL, "decode": Phase.DECODE, "aggregated": Phase.AGGREGATED}
_SCOPES = {"off": IdScope.OFF, "weak": IdScope.WEAK, "all": IdScope.ALL}
# An aggregated engine computes the context too.
_CONTEXT_PHASES = frozenset({Phase.PREFILL, Phase.AGGREGATED})
_SUBAGENT_PHASES = {
    "off": frozenset[Phase](),
    "context": _CONTEXT_PHASES,
    "both": _CONTEXT_PHASES | {Phase.DECODE},
}


def compile_policy(policy: Policy, identity: IdentityPolicy | None = None) -> CompiledPolicy:
    """Returns the policy in the form that a decision reads.

    Args:
        policy: the policy as written.
        identity: the identity part to use; None for `policy.identity`.
    """
    operational, identity = policy.operational, identity or policy.identity
    carriers = tuple(_make_carrier(entry, identity) for entry in identity.order)
    view = _make_view(operational, identity, carriers)
    return CompiledPolicy(
        revision=view.revision,
        identity_epoch=view.identity_epoch,
        is_off=operational.mode == "off",
        is_shadow=operational.mode == "shadow",
        rollout_buckets=_count_buckets(operational),
        places_always=operational.placement.when == "always",
        placement_phases=frozenset(_PHASES[name] for name in operational.placement.phases),
        placement=PlacementSettings(
            choose_first=FIRST_RANK_POLICIES[operational.placement.first],
            resident_weight=operational.placement.resident_weight,
            idle_ttl_s=operational.placement.idle_ttl_s,
            lease_ttl_s=operational.placement.lease_ttl_s,
            max_conversations=operational.placement.max_conversations,
        ),
        suspends_single_use=operational.single_use_guard == "enforce",
        identity=IdentityRules(
            carriers=carriers,
            headerless_carriers=tuple(carrier for carrier in carriers if not carrier.fields.headers),
            carrier_headers=frozenset().union(*(carrier.fields.headers for carrier in carriers)),
            accepts_placeholders=identity.ids == "unchanged",
            naming=Naming(_SCOPES[identity.scope], IdForm(identity.ids)),
            parent_fallbacks=_list_parent_fallbacks(identity),
            subagent_phases=_SUBAGENT_PHASES[identity.subagents],
        ),
        view=view,
        logged_buckets=round(operational.logging.decision_sample_percent * ROLLOUT_BUCKETS / 100),
    )


def _count_buckets(operational: Operational) -> int:
    return round(operational.rollout_percent * ROLLOUT_BUCKETS / 100)


def _make_carrier(entry: str | OwnHeader, identity: IdentityPolicy) -> Carrier:
    if isinstance(entry, OwnHeader):
        return make_header_carrier(entry.header, entry.parent_header or "")
    if entry != AGENT_CONTEXT.key:
        return CARRIERS[entry]
    if identity.agent_context == "affinity-only":
        return AGENT_CONTEXT_AFFINITY_ONLY
    return AGENT_CONTEXT_WITHIN_RUN if identity.trajectory_scope == "run" else AGENT_CONTEXT


def _list_parent_fallbacks(identity: IdentityPolicy) -> tuple[Callable[[Identity], str], ...]:
    fallbacks: list[Callable[[Identity], str]] = []
    if identity.agent_context == "affinity-only":
        fallbacks.append(find_agent_session)
    if identity.prompt_cache_key == "affinity":
        fallbacks.append(find_prompt_cache_key)
    return tuple(fallbacks)


def _make_view(
    operational: Operational, identity: IdentityPolicy, carriers: tuple[Carrier, ...]
) -> ClientView:
    content = identity.model_dump(mode="json", exclude={"profile", "effective_at"})
    fields = reduce(or_, (carrier.fields for carrier in carriers), Fields())
    if identity.subagents != "off":
        fields = reduce(or_, (carrier.parent_fields for carrier in carriers), fields)
    if identity.scope != "off":
        fields |= Fields(headers=frozenset({TENANT_HEADER}))
    if identity.prompt_cache_key == "affinity":
        fields |= Fields(body=frozenset({PROMPT_CACHE_KEY}))
    fields |= Fields(per_request_headers=frozenset({FINAL_HEADER}))
    return ClientView(
        revision=_hash_content({"operational": operational.model_dump(mode="json"), "identity": content}),
        identity_epoch=_hash_content(content),
        local_sources=_list_local_sources(operational, identity, carriers),
        scope=_SCOPES[identity.scope],
        headers=tuple(sorted(fields.headers - {BAGGAGE_HEADER})),
        per_request_headers=tuple(sorted(fields.per_request_headers)),
        metadata=tuple(sorted(fields.metadata)),
        body=tuple(sorted(fields.body)),
        annotations=tuple(sorted(fields.annotations)),
        baggage=tuple(sorted(fields.baggage)),
        logs_plain_ids=operational.logging.log_ids == "plain",
        reuse_max_age_s=min(operational.reuse.max_age_s, operational.placement.idle_ttl_s / 2),
    )


def _list_local_sources(
    operational: Operational, identity: IdentityPolicy, carriers: tuple[Carrier, ...]
) -> tuple[IdentitySource, ...]:
    """Returns the leading carriers of the order that a worker alone resolves as the sidecar would."""
    is_active = operational.mode == "on" and _count_buckets(operational) == ROLLOUT_BUCKETS
    if not is_active or identity.ids == "derive_always":
        return ()
    sources = []
    for carrier in carriers:
        if not carrier.is_structured or carrier is AGENT_CONTEXT_WITHIN_RUN:
            break
        if carrier is not AGENT_CONTEXT_AFFINITY_ONLY:
            sources.append(carrier.source)
    # A worker skips placeholders, so after the first carrier it could select another one than the sidecar.
    return tuple(sources[:1] if identity.ids == "unchanged" else sources)


def _hash_content(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=6, person=b"rh1-policy").hexdigest()
