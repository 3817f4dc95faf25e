"""Remembers decisions before placement, by everything that they depend on.

A decision is a pure function of its request's subject, the policy and the suspended carriers, and most
requests repeat an earlier subject: a conversation's next turn has the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Set
from typing import NamedTuple

from routing_hints.vocabulary import RankDirective
from sidecar.decision.decide import decide
from sidecar.model import Decision, Engine, IdentityReader, Request
from sidecar.policy.compiled import ROLLOUT_BUCKETS, CompiledPolicy

MAX_REMEMBERED = 4_096
"""Subjects whose decisions are kept; the one used longest ago is forgotten first."""
_MAX_TENANT_BYTES = 256


class Subject(NamedTuple):
    """What of a request its decision depends on.

    The rest is the request's own: its id, worker, model, length and trace, and the ranks that its router
    chose and its client remembers.
    """

    phase: int
    kind: int
    tenant: str
    identity: bytes
    engine: Engine
    unknown_enums: tuple[str, ...]
    has_router_rank: bool


class Remembered(NamedTuple):
    """A decision before placement."""

    decision: Decision
    serialized: bytes
    """The decision as it is sent; empty where placement has the last word."""


class DecisionCache:
    """Decides by one policy at a time, and forgets its decisions with that.

    Args:
        serialize: turns a decision into what is sent.
    """

    def __init__(self, serialize: Callable[[Decision], bytes]) -> None:
        self._serialize = serialize
        self._policy: CompiledPolicy | None = None
        self._suspended: Set[str] = frozenset()
        self._remembered: OrderedDict[Subject, Remembered] = OrderedDict()

    def decide(
        self, request: Request, identity: IdentityReader, policy: CompiledPolicy, suspended: Set[str]
    ) -> Remembered:
        """Returns what `decide.decide` returns for a request.

        Args:
            request: without its identity.
            identity: its carriers, read only where the decision is not remembered.
            policy: the policy in force.
            suspended: names of carriers whose ids are not attached.
        """
        if policy is not self._policy or suspended != self._suspended:
            self._policy, self._suspended = policy, suspended
            self._remembered.clear()
        subject = _read_subject(request, identity)
        known = self._remembered.get(subject) if subject is not None else None
        if subject is not None and known is not None:
            self._remembered.move_to_end(subject)
            return known
        decision = decide(request._replace(identity=identity.read()), policy, suspended)
        is_placed = decision.directive is RankDirective.PLACE
        remembered = Remembered(decision, b"" if is_placed else self._serialize(decision))
        # Without a reusable id, a rollout goes by the request's own.
        depends_on_request = policy.rollout_buckets < ROLLOUT_BUCKETS and not decision.reusable
        if subject is not None and not depends_on_request:
            self._remembered[subject] = remembered
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return remembered


def _read_subject(request: Request, identity: IdentityReader) -> Subject | None:
    if identity.key is None or len(request.tenant) > _MAX_TENANT_BYTES:
        return None
    return Subject(
        request.phase,
        request.kind,
        request.tenant,
        identity.key,
        request.engine,
        request.unknown_enums,
        request.router_rank is not None,
    )
