"""Schema of the policy file; `default_policy.yaml` explains each key.

The operational part configures what the sidecar does, the identity part how conversations are named.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from sidecar.placement.first_rank import FIRST_RANK_POLICIES
from sidecar.policy.identity_schema import IdentityPolicy, NextIdentityPolicy, PolicyPart

PhaseName: TypeAlias = Literal["prefill", "decode", "aggregated"]


def _sort_distinct(phases: tuple[PhaseName, ...]) -> tuple[PhaseName, ...]:
    return tuple(sorted(set(phases)))


def _check_first(name: str) -> str:
    if name not in FIRST_RANK_POLICIES:
        raise ValueError(f"is not one of {', '.join(FIRST_RANK_POLICIES)}")
    return name


class Placement(PolicyPart):
    """When and how the sidecar places conversations itself; used only with rank source `sidecar`."""

    when: Literal["router_rank_absent", "always"] = "router_rank_absent"
    phases: Annotated[tuple[PhaseName, ...], AfterValidator(_sort_distinct)] = ("aggregated", "prefill")
    first: Annotated[str, AfterValidator(_check_first)] = "least_load"
    """How the rank of a first turn is chosen. `rendezvous` is stateless: a hash of the conversation."""
    resident_weight: float = Field(default=0.05, strict=True, ge=0, le=10, allow_inf_nan=False)
    """Load of one token resident in a rank's KV cache, in outstanding tokens."""
    idle_ttl_s: float = Field(default=3_600.0, strict=True, ge=1, le=31_536_000)
    """Seconds without a request after which a conversation is forgotten."""
    lease_ttl_s: float = Field(default=600.0, strict=True, ge=1, le=86_400)
    """Seconds after which a request without a finish report counts as finished."""
    max_conversations: int = Field(default=65_536, strict=True, ge=1, le=16_777_216)
    """Limit across all engines; the least recently used is evicted."""


class Reuse(PolicyPart):
    """Whether clients apply remembered decisions at once, before the sidecar has decided."""

    max_age_s: float = Field(default=0.0, strict=True, ge=0, le=86_400, allow_inf_nan=False)
    """How long after its last response a decision is reused; 0 is never."""


class Logging(PolicyPart):
    """What the sidecar and the worker clients log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"
    log_ids: Literal["hashed", "plain"] = "hashed"
    """`plain` lets worker clients log raw ids."""
    decision_sample_percent: float = Field(default=0.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Percentage of requests whose decisions are logged, in steps of 0.01."""


class Operational(PolicyPart):
    """What the sidecar does."""

    mode: Literal["on", "shadow", "off"] = "on"
    """`shadow` decides and reports the decision, but changes no request."""
    rollout_percent: float = Field(default=100.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Percentage of conversations in the rollout, in steps of 0.01; the others are forwarded."""
    single_use_guard: Literal["report", "enforce"] = "report"
    """`report` logs a carrier whose ids are single-use; `enforce` also stops attaching them."""
    placement: Placement = Placement()
    reuse: Reuse = Reuse()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _check_reuse(self) -> Operational:
        if self.reuse.max_age_s >= self.placement.idle_ttl_s:
            raise ValueError("reuse.max_age_s must be less than placement.idle_ttl_s")
        return self


class Policy(PolicyPart):
    """The whole policy; the defaults apply without a file."""

    operational: Operational = Operational()
    identity: IdentityPolicy = IdentityPolicy()
    next_identity: NextIdentityPolicy | None = None
    """Replaces `identity` at its `effective_at`."""

    def identity_at(self, now_s: float) -> IdentityPolicy:
        """Returns the identity part in force at a time, in seconds since the epoch."""
        coming = self.next_identity
        return coming if coming is not None and coming.effective_at.timestamp() <= now_s else self.identity

    def changes_at(self, now_s: float) -> float | None:
        """Returns when the identity part will change, in seconds since the epoch; None for never."""
        coming = self.next_identity
        if coming is None or coming.effective_at.timestamp() <= now_s:
            return None
        return coming.effective_at.timestamp()
