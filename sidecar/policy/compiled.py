"""The policy as the decision reads it: flat, frozen, nothing left to look up per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.conversation import Naming
from sidecar.identity.carrier import Carrier
from sidecar.model import Identity, IdentitySource, IdScope, Phase


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
    """One policy with one identity part, compiled once by `policy_compiler.compile_policy`."""

    revision: str
    """Changes with the operational part and with the identity part in force."""
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
    enforces_guard: bool
    """Whether ids of a carrier that almost never repeat are not attached."""
    carriers: tuple[Carrier, ...]
    bare_carriers: tuple[Carrier, ...]
    """Those that read no header, for requests without any that a carrier reads."""
    carrier_headers: frozenset[str]
    """The headers that a carrier reads for an id."""
    takes_any_value: bool
    """Whether a placeholder names a conversation, as it does in the engine's own HTTP edge."""
    naming: Naming
    groups: tuple[Callable[[Identity], str], ...]
    """What stands in for a parent, first choice first."""
    subagent_phases: frozenset[Phase]
    """The legs on which a sub-agent is placed by its parent."""
    view: ClientView
    logged_buckets: int
    """How many of the 10,000 buckets of requests have their decisions logged."""

    @property
    def mode(self) -> str:
        """`on`, `shadow` or `off`, as in the policy."""
        return "off" if self.is_off else "shadow" if self.is_shadow else "on"


@dataclass(frozen=True, slots=True)
class ClientView:
    """What a worker's client needs to know of the policy; names are sorted, header names in lower case."""

    revision: str
    identity_epoch: str
    local_sources: tuple[IdentitySource, ...]
    """The carriers that a worker may resolve alone, in order."""
    scope: IdScope
    headers: tuple[str, ...]
    """Headers that can change an answer."""
    passing_headers: tuple[str, ...]
    """Headers that say something about one request and never change an id."""
    metadata: tuple[str, ...]
    body: tuple[str, ...]
    annotations: tuple[str, ...]
    """Prefixes."""
    logs_plain_ids: bool


def merge_views(now: ClientView, soon: ClientView) -> ClientView:
    """Returns the view for the time before an identity part is replaced: names of both, and `now` else.

    A client whose sidecar falls silent meanwhile resolves alone only what both parts resolve alike.
    """
    shared = []
    if now.scope is soon.scope:
        for mine, other in zip(now.local_sources, soon.local_sources, strict=False):
            if mine is not other:
                break
            shared.append(mine)
    return ClientView(
        now.revision,
        now.identity_epoch,
        tuple(shared),
        now.scope,
        _merge(now.headers, soon.headers),
        _merge(now.passing_headers, soon.passing_headers),
        _merge(now.metadata, soon.metadata),
        _merge(now.body, soon.body),
        _merge(now.annotations, soon.annotations),
        now.logs_plain_ids,
    )


def _merge(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*names, *others}))
