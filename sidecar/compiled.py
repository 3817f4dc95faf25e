"""The policy as the decision reads it: flat, frozen, nothing left to look up per request."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.carrier import Carrier
from sidecar.model import IdentitySource, IdScope, Phase


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """How the sidecar places; see `policy.Placement`."""

    first_by_hash: bool
    """Whether a first turn goes by rendezvous hash alone, and not by load."""
    resident_weight: float
    idle_ttl_s: float
    lease_ttl_s: float
    max_conversations: int


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One policy, compiled once by `policy.compile_policy`."""

    revision: str
    """Changes with any part of the policy."""
    identity_epoch: str
    """Changes with the identity part; sidecars with equal epochs give equal ids."""
    is_off: bool
    is_shadow: bool
    rollout_buckets: int
    """How many of the 10,000 buckets of conversations are decided about."""
    places_always: bool
    """Whether a rank that the router sent is replaced."""
    placement_phases: frozenset[Phase]
    placement: PlacementSettings
    carriers: tuple[Carrier, ...]
    scope: IdScope
    derives_always: bool
    subagent_phases: frozenset[Phase]
    """The legs on which a sub-agent is placed by its parent."""
    local_sources: tuple[IdentitySource, ...]
    """The carriers that a worker may resolve alone, in order."""
    identity_headers: tuple[str, ...]
    """Names of the headers that can change an answer, in lower case, sorted."""
    logs_plain_ids: bool
    logged_buckets: int
    """How many of the 10,000 buckets of requests have their decisions logged."""

    @property
    def mode(self) -> str:
        """`on`, `shadow` or `off`, as in the policy."""
        return "off" if self.is_off else "shadow" if self.is_shadow else "on"
