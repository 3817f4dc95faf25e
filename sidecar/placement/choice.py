"""Which rank a request should go to; reads the state and changes nothing."""

from __future__ import annotations

from sidecar.model import ConversationHash, Decision, PlacementKey, Query
from sidecar.placement.engine_phase import Leg
from sidecar.placement.lease import Leases
from sidecar.placement.rendezvous import choose_by_hash
from sidecar.placement.table import ConversationTable, Entry
from sidecar.policy.compiled import PlacementSettings


def choose_rank(
    leg: Leg,
    query: Query,
    key: PlacementKey,
    table: ConversationTable,
    leases: Leases,
    settings: PlacementSettings,
    now_s: float,
) -> tuple[int, Decision]:
    """Returns the rank, and what the table knew of the conversation.

    Args:
        leg: the present generation.
        query: the request.
        key: what it is placed by.
        table: the conversations.
        leases: the requests in flight.
        settings: the policy's part.
        now_s: the present time.
    """
    entry = find_live(table, leg, key.conversation, settings, now_s)
    attempt = leases.find_attempt(leg, query.request_id)
    is_retry = attempt is not None and attempt.conversation == key.conversation
    if attempt is not None and is_retry and (entry is None or entry.rank == attempt.rank):
        return attempt.rank, attempt.decision
    if entry is not None:
        return entry.rank, _name_decision(entry)
    if key.conversation and query.known_rank is not None:
        return query.known_rank, Decision.RETAINED
    rank = _choose_first_rank(leg, query, key, table, settings, now_s)
    return rank, Decision.NEW if key.conversation else Decision.NONE


def find_live(
    table: ConversationTable,
    leg: Leg,
    conversation: ConversationHash,
    settings: PlacementSettings,
    now_s: float,
) -> Entry | None:
    """Returns the entry of a conversation unless its time is over."""
    entry = table.get(leg, conversation) if conversation else None
    if entry is None or (now_s - entry.used_at_s > settings.idle_ttl_s and not entry.in_flight):
        return None
    return entry


def _name_decision(entry: Entry) -> Decision:
    # Until a first request has run, a second one must not count on the engine to know the conversation.
    if not entry.is_established:
        return Decision.NEW
    return Decision.MOVED if entry.has_moved else Decision.RETAINED


def _choose_first_rank(
    leg: Leg,
    query: Query,
    key: PlacementKey,
    table: ConversationTable,
    settings: PlacementSettings,
    now_s: float,
) -> int:
    parent = find_live(table, leg, key.parent, settings, now_s)
    if parent is not None and parent.tenant_tag == hash(key.tenant):
        return parent.rank
    name = key.parent or key.conversation
    if settings.first_by_hash and name:
        return choose_by_hash(name, range(leg.loads.dp_size))
    tied = leg.loads.find_least_loaded(now_s, settings.resident_weight * leg.retention)
    return tied[0] if len(tied) == 1 else choose_by_hash(name or query.request_id, tied)
