"""The operator's policy: what may be written in its file, and how the decision gets it.

The operational part says what the sidecar does, the identity part what a conversation is called.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import blake2b
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sidecar.carrier import CARRIERS, TENANT_HEADER
from sidecar.compiled import CompiledPolicy, PlacementSettings
from sidecar.directive import ROLLOUT_BUCKETS
from sidecar.model import IdScope, Phase

PhaseName: TypeAlias = Literal["prefill", "decode", "aggregated"]

_PHASES = {"prefill": Phase.PREFILL, "decode": Phase.DECODE, "aggregated": Phase.AGGREGATED}
_SCOPES = {"off": IdScope.OFF, "weak": IdScope.WEAK, "all": IdScope.ALL}
# An aggregated engine computes the context too.
_CONTEXT_PHASES = frozenset({Phase.PREFILL, Phase.AGGREGATED})
_SUBAGENT_PHASES = {
    "off": frozenset[Phase](),
    "context": _CONTEXT_PHASES,
    "both": _CONTEXT_PHASES | {Phase.DECODE},
}


def _check_carrier(key: str) -> str:
    if key not in CARRIERS:
        raise ValueError(f"not a carrier; known are {', '.join(CARRIERS)}")
    return key


def _check_distinct(keys: tuple[str, ...]) -> tuple[str, ...]:
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise ValueError(f"occurs twice: {', '.join(twice)}")
    return keys


def _sort_distinct(phases: tuple[PhaseName, ...]) -> tuple[PhaseName, ...]:
    return tuple(sorted(set(phases)))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Placement(_Part):
    """When and how the sidecar chooses a rank itself; acts only with rank source `sidecar`."""

    when: Literal["router_rank_absent", "always"] = "router_rank_absent"
    phases: Annotated[tuple[PhaseName, ...], AfterValidator(_sort_distinct)] = ("aggregated", "prefill")
    first: Literal["least_load", "rendezvous"] = "least_load"
    """Where a first turn goes. `rendezvous` needs no state: it depends on the conversation alone."""
    resident_weight: float = Field(default=0.05, strict=True, ge=0, le=10, allow_inf_nan=False)
    """Tokens of work in flight that one token kept in a rank's KV cache weighs as much as."""
    idle_ttl_s: float = Field(default=3_600.0, strict=True, ge=1, le=31_536_000)
    """A conversation is forgotten after so long without a request."""
    lease_ttl_s: float = Field(default=600.0, strict=True, ge=1, le=86_400)
    """A request whose end is not reported counts as ended after so long."""
    max_conversations: int = Field(default=65_536, strict=True, ge=1, le=16_777_216)
    """Of all engines together; the one used longest ago is forgotten first."""


class Logging(_Part):
    """What the sidecar and the workers' clients write to their logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"
    log_ids: Literal["hashed", "plain"] = "hashed"
    """`plain` lets the clients log raw ids."""
    decision_sample_percent: float = Field(default=0.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Share of requests whose decisions the sidecar logs, in steps of 0.01."""


class Operational(_Part):
    """What the sidecar does."""

    mode: Literal["on", "shadow", "off"] = "on"
    """`shadow` decides and says so, but changes no request."""
    rollout_percent: float = Field(default=100.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Share of conversations that is decided about, in steps of 0.01."""
    placement: Placement = Placement()
    logging: Logging = Logging()


class IdentityPolicy(_Part):
    """What a conversation is called; equal parts give equal ids on every sidecar."""

    order: Annotated[
        tuple[Annotated[str, AfterValidator(_check_carrier)], ...],
        AfterValidator(_check_distinct),
        Field(min_length=1),
    ] = tuple(CARRIERS)
    """The carriers to read, first choice first; others are not read."""
    scope: Literal["off", "weak", "all"] = "weak"
    subagents: Literal["off", "context", "both"] = "context"
    ids: Literal["verbatim", "derive_always"] = "verbatim"


class Policy(_Part):
    """The whole policy; without a file the defaults."""

    operational: Operational = Operational()
    identity: IdentityPolicy = IdentityPolicy()


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Returns the policy in the form that the decision reads."""
    operational, identity = policy.operational, policy.identity
    rollout_buckets = round(operational.rollout_percent * ROLLOUT_BUCKETS / 100)
    carriers = tuple(CARRIERS[key] for key in identity.order)
    # A worker must not act alone where the sidecar might have decided otherwise.
    worker_may_act = (
        operational.mode == "on" and rollout_buckets == ROLLOUT_BUCKETS and identity.ids == "verbatim"
    )
    structured_first = takewhile(lambda carrier: not carrier.header, carriers)
    headers = {carrier.header for carrier in carriers if carrier.header}
    if identity.subagents != "off":
        headers |= {carrier.parent_header for carrier in carriers if carrier.parent_header}
    if identity.scope != "off":
        headers.add(TENANT_HEADER)
    return CompiledPolicy(
        revision=_hash_content(policy.model_dump(mode="json")),
        identity_epoch=_hash_content(identity.model_dump(mode="json")),
        is_off=operational.mode == "off",
        is_shadow=operational.mode == "shadow",
        rollout_buckets=rollout_buckets,
        places_always=operational.placement.when == "always",
        placement_phases=frozenset(_PHASES[name] for name in operational.placement.phases),
        placement=PlacementSettings(
            first_by_hash=operational.placement.first == "rendezvous",
            resident_weight=operational.placement.resident_weight,
            idle_ttl_s=operational.placement.idle_ttl_s,
            lease_ttl_s=operational.placement.lease_ttl_s,
            max_conversations=operational.placement.max_conversations,
        ),
        carriers=carriers,
        scope=_SCOPES[identity.scope],
        derives_always=identity.ids == "derive_always",
        subagent_phases=_SUBAGENT_PHASES[identity.subagents],
        local_sources=tuple(carrier.source for carrier in structured_first) if worker_may_act else (),
        identity_headers=tuple(sorted(headers)),
        logs_plain_ids=operational.logging.log_ids == "plain",
        logged_buckets=round(operational.logging.decision_sample_percent * ROLLOUT_BUCKETS / 100),
    )


def _hash_content(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=6, person=b"rh1-policy").hexdigest()
