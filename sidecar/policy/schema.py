"""The operator's policy: what may be written in its file.

The operational part says what the sidecar does, the identity part what a conversation is called.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from sidecar.policy.identity_schema import IdentityPolicy, NextIdentityPolicy
from sidecar.policy.policy_part import PolicyPart

PhaseName: TypeAlias = Literal["prefill", "decode", "aggregated"]


def _sort_distinct(phases: tuple[PhaseName, ...]) -> tuple[PhaseName, ...]:
    return tuple(sorted(set(phases)))


class Placement(PolicyPart):
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


class Logging(PolicyPart):
    """What the sidecar and the workers' clients write to their logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"
    log_ids: Literal["hashed", "plain"] = "hashed"
    """`plain` lets the clients log raw ids."""
    decision_sample_percent: float = Field(default=0.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Share of requests whose decisions the sidecar logs, in steps of 0.01."""


class Operational(PolicyPart):
    """What the sidecar does."""

    mode: Literal["on", "shadow", "off"] = "on"
    """`shadow` decides and says so, but changes no request."""
    rollout_percent: float = Field(default=100.0, strict=True, ge=0, le=100, allow_inf_nan=False)
    """Share of conversations that is decided about, in steps of 0.01."""
    one_shot_guard: Literal["report", "enforce"] = "report"
    """What becomes of a carrier whose ids almost never repeat; `enforce` attaches them no more."""
    placement: Placement = Placement()
    logging: Logging = Logging()


class Policy(PolicyPart):
    """The whole policy; without a file the defaults."""

    operational: Operational = Operational()
    identity: IdentityPolicy = IdentityPolicy()
    next_identity: NextIdentityPolicy | None = None
    """Takes the place of `identity` at its `effective_at`."""

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
