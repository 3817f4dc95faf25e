"""What is compared: an engine's router, who owns the rank, and what goes silently wrong."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from worker_client import Affinity, RankSource

LEAST_LOAD = "operational: {placement: {phases: [prefill]}}"
LEAST_LOAD_BOTH = "operational: {placement: {phases: [prefill, decode]}}"
RENDEZVOUS = "operational: {placement: {phases: [prefill, decode], first: rendezvous}}"


class Failure(enum.Enum):
    """Ways in which affinity fails without an error."""

    NONE = "none"
    NO_ID_ON_CONTEXT = "the id does not reach the context phase"
    NO_ID_ON_GENERATION = "the id does not reach the generation phase"
    RANK_FORCED = "the router's rank is forced although affinity is on"
    RANK_WITHHELD_WITHOUT_ID = "the worker withholds the rank and loses the id"
    ENGINE_IGNORES_ID = "the id is attached to an engine that ignores it"
    NO_IDENTITY_RANK_WITHHELD = "no identity at all; the router's rank is withheld"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the same requests.

    Attributes:
        name: for tables.
        context_router: the context engines' real router.
        generation_router: the generation engine's real router.
        affinity: the clients' gate.
        rank_source: who chooses the rank.
        policy: of every sidecar, as YAML.
        failure: what goes wrong.
    """

    name: str
    context_router: str = "default"
    generation_router: str = "default"
    affinity: Affinity = Affinity.AUTO
    rank_source: RankSource = RankSource.ENGINE
    policy: str = LEAST_LOAD
    failure: Failure = Failure.NONE

    @property
    def is_scattered(self) -> bool:
        """Whether conversations change ranks, so that it takes longer until caches and queues are level."""
        is_before = self.affinity is Affinity.OFF and self.context_router == "default"
        return is_before or self.failure not in (Failure.NONE, Failure.NO_ID_ON_GENERATION)


BEFORE = Arm("scattered (before)", affinity=Affinity.OFF)
BEFORE_FORCED = Arm("router's rank forced (before)", affinity=Affinity.OFF, failure=Failure.RANK_FORCED)
KV_AWARE = Arm("KV-aware router", "kv_aware", "default", affinity=Affinity.OFF)
ENGINE_CONTEXT = Arm("engine, context phase", "round_robin", "default")
ENGINE = Arm("engine, both phases", "round_robin", "round_robin")
LEAST_TOKENS_CONTEXT = Arm("engine least_tokens, context phase", "least_tokens", "default")
LEAST_TOKENS = Arm("engine least_tokens, both phases", "least_tokens", "least_tokens")
SIDECAR_CONTEXT = Arm("sidecar, context phase", rank_source=RankSource.SIDECAR)
SIDECAR = Arm("sidecar, both phases", rank_source=RankSource.SIDECAR, policy=LEAST_LOAD_BOTH)
RENDEZVOUS_ARM = Arm("sidecar rendezvous, both phases", rank_source=RankSource.SIDECAR, policy=RENDEZVOUS)
POLICIES = (
    BEFORE,
    KV_AWARE,
    ENGINE_CONTEXT,
    ENGINE,
    LEAST_TOKENS_CONTEXT,
    LEAST_TOKENS,
    SIDECAR_CONTEXT,
    SIDECAR,
    RENDEZVOUS_ARM,
)


def _fail(failure: Failure, context: str = "round_robin") -> Arm:
    source = RankSource.ROUTER if failure is Failure.RANK_FORCED else RankSource.ENGINE
    return Arm(failure.value, context, "round_robin", rank_source=source, failure=failure)


FAILURES = (
    _fail(Failure.NO_ID_ON_CONTEXT),
    _fail(Failure.NO_ID_ON_GENERATION),
    _fail(Failure.RANK_FORCED),
    _fail(Failure.RANK_WITHHELD_WITHOUT_ID),
    _fail(Failure.ENGINE_IGNORES_ID, "default"),
    _fail(Failure.NO_IDENTITY_RANK_WITHHELD),
)
