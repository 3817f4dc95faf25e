"""Which rank a request should go to; reads the state and changes nothing."""

from __future__ import annotations

from routing_hints.conversation_id import ConversationHash
from routing_hints.vocabulary import PlacementState
from sidecar.model import PlacementKey, Request
from sidecar.placement.engine_phase import EnginePhase
from sidecar.placement.lease import Leases
from sidecar.placement.settings import PlacementSettings
from sidecar.placement.table import ConversationTable, Entry


def choose_rank(
    engine_phase: EnginePhase,
    request: Request,
    key: PlacementKey,
    table: ConversationTable,
    leases: Leases,
    settings: PlacementSettings,
    now_s: float,
) -> tuple[int, PlacementState]:
    """Returns the rank, and what the table has of the conversation.

    Args:
        engine_phase: the present generation.
        request: the request.
        key: what it is placed by.
        table: the conversations.
        leases: the requests in flight.
        settings: the policy's part.
        now_s: the present time.
    """
    entry = find_live(table, engine_phase, key.conversation, settings, now_s)
    attempt = leases.find_attempt(engine_phase, request.request_id)
    is_retry = attempt is not None and attempt.conversation == key.conversation
    if attempt is not None and is_retry and (entry is None or entry.rank == attempt.rank):
        return attempt.rank, attempt.placement
    if entry is not None:
        return entry.rank, _name_state(entry)
    if key.conversation and request.known_rank is not None:
        return request.known_rank, PlacementState.RETAINED
    rank = _choose_first_rank(engine_phase, request, key, table, settings, now_s)
    return rank, PlacementState.NEW if key.conversation else PlacementState.NONE


def find_live(
    table: ConversationTable,
    engine_phase: EnginePhase,
    conversation: ConversationHash,
    settings: PlacementSettings,
    now_s: float,
) -> Entry | None:
    """Returns the entry of a conversation unless its time is over."""
    entry = table.get(engine_phase, conversation) if conversation else None
    if entry is None or (now_s - entry.used_at_s > settings.idle_ttl_s and not entry.in_flight):
        return None
    return entry


def _name_state(entry: Entry) -> PlacementState:
    # Until a first request has run, a second one must not count on the engine to know the conversation.
    if not entry.is_established:
        return PlacementState.NEW
    return PlacementState.MOVED if entry.has_moved else PlacementState.RETAINED


def _choose_first_rank(
    engine_phase: EnginePhase,
    request: Request,
    key: PlacementKey,
    table: ConversationTable,
    settings: PlacementSettings,
    now_s: float,
) -> int:
    parent = find_live(table, engine_phase, key.parent, settings, now_s)
    if parent is not None and parent.tenant_tag == hash(key.tenant):
        return parent.rank
    return settings.choose_first(
        engine_phase, key.parent or key.conversation, request.request_id, settings.resident_weight, now_s
    )
