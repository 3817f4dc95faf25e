"""The words of the contract as plain Python; numbers equal the contract's, so that codecs only cast."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from routing_hints.vocabulary import IdentitySource, IdScope, PlacementState, RankDirective


class Origin(enum.Enum):
    """Who answered for a request."""

    SIDECAR = "sidecar"
    REUSED = "reused"
    MEMORY = "memory"
    LOCAL_RULE = "local-rule"
    FORWARDED = "forwarded"


@dataclass(frozen=True, slots=True)
class Decision:
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
        policy_revision: the sidecar policy behind the decision; empty if none was ever received.
        notices: tokens of docs/reference.md, most important first.
        reusable: whether the conversation's next request may apply it before the sidecar has decided.
    """

    directive: RankDirective
    origin: Origin
    conversation_id: str | None = None
    affinity_key: str | None = None
    dp_rank: int | None = None
    source: IdentitySource = IdentitySource.NONE
    source_detail: str = ""
    placement: PlacementState = PlacementState.NONE
    decision_id: str = ""
    conversation_hash: str = ""
    policy_revision: str = ""
    notices: tuple[str, ...] = ()
    reusable: bool = False


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """What the client may do while the sidecar is silent, and what to send it.

    The defaults hold until the first policy arrives. They are those of the sidecar's embedded policy, except
    that they name no headers, metadata, fields of the body or annotations.

    Attributes:
        revision: names the policy; empty before the first one arrived.
        local_sources: carriers that the client may resolve alone, in order.
        scope: which ids the sidecar would derive because of their tenant.
        headers, metadata, body, annotations: names (annotations: prefixes) of the carriers that can
            change a decision; they make the key of the client's memory.
        per_request_headers: names of headers that are sent as well, and change with each request.
        log_plain_ids: whether raw ids may be logged.
        baggage: members of the header `baggage` that can change a decision.
        generation: the reuse generation in force.
        reuse_max_age_s: how long after its last response a decision may be reused; 0 is not at all.
        valid_until_s: seconds since the epoch at which a scheduled change of identity takes effect.
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
    per_request_headers: tuple[str, ...] = ()
    log_plain_ids: bool = False
    baggage: tuple[str, ...] = ()
    generation: int = 0
    reuse_max_age_s: float = 0.0
    valid_until_s: float | None = None
