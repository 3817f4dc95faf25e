"""How the sidecar places, as the policy states it."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.placement.first_rank import FirstRankPolicy


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The policy's placement part as placement reads it."""

    choose_first: FirstRankPolicy
    resident_weight: float
    idle_ttl_s: float
    lease_ttl_s: float
    max_conversations: int
