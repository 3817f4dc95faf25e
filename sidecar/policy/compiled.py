"""The policy in the form that a decision reads: flat and frozen, so that nothing is looked up per request."""

from __future__ import annotations

from dataclasses import dataclass

from routing_hints.vocabulary import IdentitySource, IdScope, Phase
from sidecar.identity.rules import IdentityRules
from sidecar.placement.settings import PlacementSettings

ROLLOUT_BUCKETS = 10_000
"""Hash buckets of conversations and of requests, for percentages in steps of 0.01."""


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One policy with one identity part, compiled once by `compiler.compile_policy`."""

    revision: str
    """Hash of the operational part and the identity part in force."""
    identity_epoch: str
    """Hash of the identity part; sidecars with equal epochs give equal ids."""
    is_off: bool
    is_shadow: bool
    rollout_buckets: int
    """How many of the `ROLLOUT_BUCKETS` of conversations are in the rollout; the others are forwarded."""
    places_always: bool
    """Whether a rank chosen by the upstream router is replaced."""
    placement_phases: frozenset[Phase]
    placement: PlacementSettings
    suspends_single_use: bool
    """Whether a carrier with single-use ids is suspended: its ids are not attached."""
    identity: IdentityRules
    view: ClientView
    logged_buckets: int
    """How many of the `ROLLOUT_BUCKETS` of requests have their decisions logged."""

    @property
    def mode(self) -> str:
        """`on`, `shadow` or `off`, as in the policy."""
        return "off" if self.is_off else "shadow" if self.is_shadow else "on"


@dataclass(frozen=True, slots=True)
class ClientView:
    """The part of the policy that worker clients receive; names are sorted, header names in lower case."""

    revision: str
    identity_epoch: str
    local_sources: tuple[IdentitySource, ...]
    """The carriers that a worker may resolve without the sidecar, in order."""
    scope: IdScope
    headers: tuple[str, ...]
    """Headers that can affect a decision."""
    per_request_headers: tuple[str, ...]
    """Headers that change with each request and never affect an id."""
    metadata: tuple[str, ...]
    body: tuple[str, ...]
    annotations: tuple[str, ...]
    """Prefixes of annotations."""
    baggage: tuple[str, ...]
    """Members of the header `baggage` that can affect a decision."""
    logs_plain_ids: bool
    reuse_max_age_s: float
    """How long a decision may be reused; 0 is not at all."""


def merge_views(current: ClientView, coming: ClientView) -> ClientView:
    """Returns the view to send before a scheduled identity change: the names of both, all else of `current`.

    A client that loses its sidecar meanwhile resolves alone only what both identity parts resolve alike.
    """
    shared = []
    if current.scope is coming.scope:
        for source, other in zip(current.local_sources, coming.local_sources, strict=False):
            if source is not other:
                break
            shared.append(source)
    return ClientView(
        current.revision,
        current.identity_epoch,
        tuple(shared),
        current.scope,
        _merge(current.headers, coming.headers),
        _merge(current.per_request_headers, coming.per_request_headers),
        _merge(current.metadata, coming.metadata),
        _merge(current.body, coming.body),
        _merge(current.annotations, coming.annotations),
        _merge(current.baggage, coming.baggage),
        current.logs_plain_ids,
        current.reuse_max_age_s,
    )


def _merge(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*names, *others}))
