"""The vocabulary of the decision: what it reads and what it answers.

Plain values without grpc, protobuf, clock or I/O. The enums carry the contract's own numbers, so that
the codec passes them through. What is made anew for each request is a named tuple: a frozen dataclass of as
many fields takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, NewType

ConversationId = NewType("ConversationId", str)
"""Names one linear history towards the engine; personal data. The empty one stands for none."""

ConversationHash = NewType("ConversationHash", str)
"""Names a conversation in logs and metrics; 16 hexadecimal digits. The empty one stands for none."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class Phase(IntEnum):
    """The leg of disaggregated serving that asks."""

    UNSPECIFIED = 0
    PREFILL = 1
    DECODE = 2
    AGGREGATED = 3


class RequestKind(IntEnum):
    """What a request is for; unspecified is normal."""

    UNSPECIFIED = 0
    NORMAL = 1
    HEALTH_CHECK = 2
    WARMUP = 3


class EngineDialect(IntEnum):
    """How the engine can be told a conversation id; unspecified is rank-only, which can't."""

    UNSPECIFIED = 0
    RANK_ONLY = 1
    DISAGGREGATED_PARAMS = 2
    CONVERSATION_PARAMS = 3


class AdpRouter(IntEnum):
    """The engine's attention-DP router; unspecified is unknown."""

    UNSPECIFIED = 0
    UNKNOWN = 1
    DEFAULT = 2
    KV_CACHE_AWARE = 3
    CONVERSATION = 4


class RankSource(IntEnum):
    """Who chooses the attention-DP rank; unspecified where the operator did not say."""

    UNSPECIFIED = 0
    ENGINE = 1
    ROUTER = 2
    SIDECAR = 3


class RankDirective(IntEnum):
    """What the worker does with the attention-DP rank."""

    UNSPECIFIED = 0
    FORWARD = 1
    WITHHOLD = 2
    PLACE = 3


class IdentitySource(IntEnum):
    """The class of the carrier that an identity came from."""

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


class Decision(IntEnum):
    """What the placement table knew of a conversation."""

    UNSPECIFIED = 0
    NEW = 1
    RETAINED = 2
    MOVED = 3
    NONE = 4


class CarrierVerdict(IntEnum):
    """What became of a carrier."""

    UNSPECIFIED = 0
    ABSENT = 1
    UNUSABLE = 2
    TAKEN = 3
    OUTRANKED = 4


class IdScope(IntEnum):
    """Which session ids are kept apart between tenants."""

    UNSPECIFIED = 0
    OFF = 1
    WEAK = 2
    ALL = 3


class AgentContext(NamedTuple):
    """Agent identity as Dynamo hands it to a worker."""

    session_id: str = ""
    parent_session_id: str = ""
    session_final: bool = False
    trajectory_id: str = ""
    parent_trajectory_id: str = ""


class SessionControl(NamedTuple):
    """Session control as Dynamo 1.1 and 1.2 hand it to a worker."""

    session_id: str = ""
    action: str = ""
    timeout_s: int = 0
    """Shown and not used."""


class Identity(NamedTuple):
    """The carriers of a request; an empty string is an absent value."""

    conversation_id: str = ""
    agent_context: AgentContext | None = None
    session_control: SessionControl | None = None
    headers: Mapping[str, str] = NOTHING
    """Header names as they came, in any case."""
    metadata: Mapping[str, str] = NOTHING
    annotations: tuple[str, ...] = ()
    body: Mapping[str, str] = NOTHING
    """By dotted path."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine behind a request; the defaults stand for one of which nothing is known."""

    dialect: EngineDialect = EngineDialect.RANK_ONLY
    adp_router: AdpRouter = AdpRouter.UNKNOWN
    rank_source: RankSource = RankSource.UNSPECIFIED
    records_first_rank: bool = False
    dp_size: int = 0
    """Number of attention-DP ranks; 0 is unknown."""
    subagent_affinity: bool = False
    wants_conversation_id: bool = False
    instance_id: str = ""
    """A nonce of the engine's start; another one means an empty KV cache."""
    max_active_requests: int = 0
    """Requests that one attention-DP rank runs at a time; 0 is unknown."""


NO_IDENTITY = Identity()
UNKNOWN_ENGINE = Engine()


class Query(NamedTuple):
    """What the decision reads of one engine request. All strings are valid Unicode."""

    phase: Phase
    request_id: str = ""
    worker_id: str = ""
    kind: RequestKind = RequestKind.NORMAL
    identity: Identity = NO_IDENTITY
    router_rank: int | None = None
    """Attention-DP rank that the router chose for this leg."""
    engine: Engine = UNKNOWN_ENGINE
    tenant: str = ""
    unknown_enums: tuple[str, ...] = ()
    """Paths of the fields whose enum value this sidecar does not know."""
    model: str = ""
    prompt_tokens: int = 0
    """Length of the prompt; 0 is unknown."""
    traceparent: str = ""
    known_rank: int | None = None
    """The rank that the client remembers the conversation to be bound to."""


class PlacementKey(NamedTuple):
    """What a request is placed by; empty strings stand for none."""

    conversation: ConversationHash
    parent: ConversationHash
    """The conversation that started this one, where the policy places it there."""
    tenant: str


class Answer(NamedTuple):
    """What the worker is to do, and why.

    A directive PLACE without a rank says that placement is to choose one.
    """

    directive: RankDirective
    source: IdentitySource
    source_detail: str
    """The carrier that won, such as `header:x-session-id`; empty if none did."""
    conversation_hash: ConversationHash
    """Set whenever a carrier won."""
    conversation_id: ConversationId | None
    """The id to attach; None attaches none."""
    affinity_key: ConversationId | None
    """What to place by; set where an id is attached."""
    session_final: bool
    """Whether the caller said that this is the conversation's last request."""
    notices: tuple[str, ...]
    """Machine-readable tokens, most important first."""
    policy_revision: str
    identity_epoch: str
    placement_key: PlacementKey | None = None
    """Set with PLACE only."""
    dp_rank: int | None = None
    """The rank to send; set with PLACE only."""
    decision: Decision = Decision.NONE
    """What the placement table knew."""


@dataclass(frozen=True, slots=True)
class CarrierTrace:
    """One carrier as the policy saw it."""

    source: IdentitySource
    name: str
    verdict: CarrierVerdict
    reason: str = ""
    conversation_hash: ConversationHash = ConversationHash("")
    remarks: tuple[str, ...] = ()
    """Tokens for what else it says, for people."""


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """One rule of the directive table that was tried."""

    rule: str
    matched: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer with everything that was considered for it."""

    answer: Answer
    carriers: tuple[CarrierTrace, ...]
    rules: tuple[RuleTrace, ...]


class FinishReport(NamedTuple):
    """How a request ended, as its worker reported it; enums by their number on the wire."""

    request_id: str
    phase: int
    decision_id: str
    outcome: int
    applied_directive: int
    id_attached: bool
    local_reason: str
    observed_dp_rank: int | None
    cached_tokens: int | None
    seq: int
