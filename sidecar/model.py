"""The values of the decision: what it reads and what it consists of.

Plain values without grpc, protobuf, clock or I/O. What is made anew for each request is a named tuple: a
frozen dataclass of as many fields takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from routing_hints.conversation_id import ConversationHash, ConversationId
from routing_hints.vocabulary import (
    AdpRouter,
    CarrierVerdict,
    EngineDialect,
    IdentitySource,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
    RequestKind,
)

NOTHING: Mapping[str, str] = MappingProxyType({})


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


class Request(NamedTuple):
    """What the decision reads of one engine request. All strings are valid Unicode."""

    phase: Phase
    request_id: str = ""
    worker_id: str = ""
    kind: RequestKind = RequestKind.NORMAL
    identity: Identity = NO_IDENTITY
    router_rank: int | None = None
    """Attention-DP rank that the upstream router chose for this phase."""
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


class IdentityReader(Protocol):
    """The carriers of a request, for whoever needs them."""

    key: bytes | None
    """Equal keys mean equal carriers; None where they are too long to be remembered by."""

    def read(self) -> Identity:
        """Returns the carriers."""


class PlacementKey(NamedTuple):
    """What a request is placed by; empty strings stand for none."""

    conversation: ConversationHash
    parent: ConversationHash
    """The conversation that started this one, where the policy places it there."""
    tenant: str


class Decision(NamedTuple):
    """What the worker does, and why. A directive PLACE without a rank leaves the choice to placement."""

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
    """Whether the caller states that this is the conversation's last request."""
    notices: tuple[str, ...]
    """Machine-readable tokens, most important first."""
    policy_revision: str
    identity_epoch: str
    placement_key: PlacementKey | None = None
    """Set with PLACE only."""
    dp_rank: int | None = None
    """The rank to send; set with PLACE only."""
    placement: PlacementState = PlacementState.NONE
    """What the placement table had of the conversation."""
    reusable: bool = False
    """Whether the conversation's next request may apply this decision before it is decided."""


class Applied(NamedTuple):
    """What a client did with a request before it was decided, from its memory."""

    directive: RankDirective
    dp_rank: int | None
    decision_id: str
    """The decision that was remembered."""


@dataclass(frozen=True, slots=True)
class CarrierTrace:
    """One carrier as the policy saw it."""

    source: IdentitySource
    name: str
    verdict: CarrierVerdict
    reason: str = ""
    conversation_hash: ConversationHash = ConversationHash("")  # noqa: RUF009, a string
    remarks: tuple[str, ...] = ()
    """Tokens for what else it states, for people."""


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """One rule of the directive table that was tried."""

    rule: str
    matched: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with everything that was considered for it."""

    decision: Decision
    carriers: tuple[CarrierTrace, ...]
    rules: tuple[RuleTrace, ...]


class FinishReport(NamedTuple):
    """How a request ended, as its worker reports it; enums by number, which may be of a newer client."""

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
    applied_dp_rank: int | None = None
    reused: bool = False
