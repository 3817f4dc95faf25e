"""The contract's enums as plain Python, with what follows from their values.

The numbers are those of proto/routing_hints/v1, so that codecs only cast; a test compares the two.
"""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """The part of disaggregated serving that one engine request belongs to."""

    UNSPECIFIED = 0
    PREFILL = 1
    DECODE = 2
    AGGREGATED = 3


class RequestKind(enum.IntEnum):
    """What a request is for; unspecified is normal, and only normal requests are decided about."""

    UNSPECIFIED = 0
    NORMAL = 1
    HEALTH_CHECK = 2
    WARMUP = 3

    @property
    def is_normal(self) -> bool:
        """Whether it is a user's request."""
        return self in (RequestKind.UNSPECIFIED, RequestKind.NORMAL)


class EngineDialect(enum.IntEnum):
    """How the installed TensorRT-LLM release takes a conversation id; unspecified is rank-only."""

    UNSPECIFIED = 0
    RANK_ONLY = 1
    DISAGGREGATED_PARAMS = 2
    CONVERSATION_PARAMS = 3

    @property
    def carries_conversation_id(self) -> bool:
        """Whether a conversation id can be passed at all."""
        return self in (EngineDialect.DISAGGREGATED_PARAMS, EngineDialect.CONVERSATION_PARAMS)


class AdpRouter(enum.IntEnum):
    """The engine's attention-DP router; unspecified is unknown."""

    UNSPECIFIED = 0
    UNKNOWN = 1
    DEFAULT = 2
    KV_CACHE_AWARE = 3
    CONVERSATION = 4

    @property
    def is_known(self) -> bool:
        """Whether the engine's configuration could be read."""
        return self not in (AdpRouter.UNSPECIFIED, AdpRouter.UNKNOWN)


class RankSource(enum.IntEnum):
    """Who chooses the attention-DP rank; unspecified where the operator did not say."""

    UNSPECIFIED = 0
    ENGINE = 1
    ROUTER = 2
    SIDECAR = 3

    @property
    def lets_pinning_engine_choose(self) -> bool:
        """Whether an engine whose router pins conversations chooses the rank."""
        return self in (RankSource.UNSPECIFIED, RankSource.ENGINE)


class RankDirective(enum.IntEnum):
    """What is done with the attention-DP rank; unspecified is FORWARD."""

    UNSPECIFIED = 0
    FORWARD = 1
    WITHHOLD = 2
    PLACE = 3


class IdentitySource(enum.IntEnum):
    """The class of the carrier that a conversation's identity came from."""

    UNSPECIFIED = 0
    CONVERSATION_ID = 1
    AGENT_CONTEXT = 2
    SESSION_CONTROL = 3
    HEADER = 4
    METADATA = 5
    BODY = 6
    ANNOTATION = 7
    BAGGAGE = 8
    NONE = 9


class PlacementState(enum.IntEnum):
    """What the sidecar's placement table had of a conversation."""

    UNSPECIFIED = 0
    NEW = 1
    RETAINED = 2
    MOVED = 3
    NONE = 4


class CarrierVerdict(enum.IntEnum):
    """What became of a carrier."""

    UNSPECIFIED = 0
    ABSENT = 1
    UNUSABLE = 2
    TAKEN = 3
    OUTRANKED = 4


class FinishOutcome(enum.IntEnum):
    """How an engine request ended; unspecified is completed."""

    UNSPECIFIED = 0
    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3


class IdScope(enum.IntEnum):
    """Which session ids are kept apart between tenants; unspecified is weak."""

    UNSPECIFIED = 0
    OFF = 1
    WEAK = 2
    ALL = 3
