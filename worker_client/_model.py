"""The words of the contract as plain Python; numbers equal the contract's, so that codecs only cast."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(enum.IntEnum):
    """The leg of disaggregated serving that asks."""

    UNSPECIFIED = 0
    PREFILL = 1
    DECODE = 2
    AGGREGATED = 3


class RequestKind(enum.IntEnum):
    """What a request is for; only normal requests are decided about."""

    UNSPECIFIED = 0
    NORMAL = 1
    HEALTH_CHECK = 2
    WARMUP = 3


class EngineDialect(enum.IntEnum):
    """How the installed TensorRT-LLM release can be told a conversation id."""

    UNSPECIFIED = 0
    RANK_ONLY = 1
    DISAGGREGATED_PARAMS = 2
    CONVERSATION_PARAMS = 3


class AdpRouter(enum.IntEnum):
    """Which attention-DP router the engine's configuration selects."""

    UNSPECIFIED = 0
    UNKNOWN = 1
    DEFAULT = 2
    KV_CACHE_AWARE = 3
    CONVERSATION = 4


class RankSource(enum.IntEnum):
    """Who chooses the attention-DP rank; unspecified where the operator did not say."""

    UNSPECIFIED = 0
    ENGINE = 1
    ROUTER = 2
    SIDECAR = 3


class RankDirective(enum.IntEnum):
    """What is done with the attention-DP rank."""

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


class Decision(enum.IntEnum):
    """What the sidecar's placement table knew of the conversation."""

    UNSPECIFIED = 0
    NEW = 1
    RETAINED = 2
    MOVED = 3
    NONE = 4


class FinishOutcome(enum.IntEnum):
    """How an engine request ended."""

    UNSPECIFIED = 0
    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3


class IdScope(enum.IntEnum):
    """How the sidecar keeps session ids of different tenants apart."""

    UNSPECIFIED = 0
    OFF = 1
    WEAK = 2
    ALL = 3


class Origin(enum.Enum):
    """Who answered for a request."""

    SIDECAR = "sidecar"
    MEMORY = "memory"
    LOCAL_RULE = "local-rule"
    FORWARDED = "forwarded"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be done with one request.

    Attributes:
        directive: what to do with the attention-DP rank.
        origin: who says so.
        conversation_id: the id to attach; None attaches none.
        affinity_key: the key to place by; differs from the id for a sub-agent only.
        dp_rank: the rank to send, with `RankDirective.PLACE` only.
        source: class of the carrier that won.
        source_detail: the carrier that won, such as `header:x-session-id`.
        decision: what the placement table knew.
        decision_id: names the decision at the sidecar; empty if it made none in time.
        conversation_hash: names the conversation in logs; empty without an identity.
        policy_revision: the sidecar policy behind the answer; empty if none was ever seen.
        notices: tokens of docs/reference.md, most important first.
    """

    directive: RankDirective
    origin: Origin
    conversation_id: str | None = None
    affinity_key: str | None = None
    dp_rank: int | None = None
    source: IdentitySource = IdentitySource.NONE
    source_detail: str = ""
    decision: Decision = Decision.NONE
    decision_id: str = ""
    conversation_hash: str = ""
    policy_revision: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """What the client may do while the sidecar is silent, and what to send it.

    The defaults are those of the sidecar's embedded policy; they hold until the first policy arrives.

    Attributes:
        revision: names the policy; empty before the first one arrived.
        local_sources: carriers that the client may resolve alone, in order.
        scope: which ids the sidecar would derive because of their tenant.
        headers, metadata, body, annotations: names (annotations: prefixes) of the carriers that can
            change an answer; they make the key of the client's memory.
        passing_headers: names of headers that are sent as well, and change with each request.
        log_plain_ids: whether raw ids may be logged.
    """

    revision: str = ""
    local_sources: tuple[IdentitySource, ...] = (
        IdentitySource.CONVERSATION_ID,
        IdentitySource.AGENT_CONTEXT,
        IdentitySource.SESSION_CONTROL,
    )
    scope: IdScope = IdScope.WEAK
    headers: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    passing_headers: tuple[str, ...] = ()
    log_plain_ids: bool = False
