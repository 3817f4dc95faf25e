"""The admin RPCs about single conversations: shows and ends entries of the placement table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.duration_pb2 import Duration

from routing_hints.v1 import admin_pb2
from sidecar.model import ConversationHash
from sidecar.placement.placement import Placement
from sidecar.placement.table import Entry
from sidecar.policy.holder import PolicyHolder
from sidecar.server.error_boundary import NotFoundError
from sidecar.wire.field_limit import FieldError

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1_000


class ConversationAdmin:
    """Three of the admin service's RPCs.

    Args:
        placement: what is shown.
        holder: gives the policy in force.
        clock: the one that `placement` uses.
    """

    def __init__(self, placement: Placement, holder: PolicyHolder, clock: Callable[[], float]) -> None:
        self._placement = placement
        self._holder = holder
        self._clock = clock

    def list_conversations(
        self, request: admin_pb2.ListConversationsRequest
    ) -> admin_pb2.ListConversationsResponse:
        """Returns a page of conversations; raises FieldError for a page that can't be.

        A conversation that is used between two pages moves to the front, so a later page leaves it out.
        """
        if request.page_size > MAX_PAGE_SIZE:
            raise FieldError("page_size", f"is above {MAX_PAGE_SIZE}")
        before = _parse_token(request.page_token)
        size = request.page_size or DEFAULT_PAGE_SIZE
        self._expire()
        entries = self._placement.table.list_used_before(before, request.worker_id, size + 1)
        page = entries[:size]
        return admin_pb2.ListConversationsResponse(
            conversations=map(self._encode, page),
            next_page_token=str(page[-1].use_number) if len(entries) > size else "",
        )

    def get_conversation(
        self, request: admin_pb2.GetConversationRequest
    ) -> admin_pb2.GetConversationResponse:
        """Returns one conversation; raises NotFoundError if no leg knows it."""
        self._expire()
        name = ConversationHash(request.conversation_hash)
        entries = self._placement.table.find(name, self._placement.legs)
        if not entries:
            raise NotFoundError("no leg knows this conversation")
        return admin_pb2.GetConversationResponse(conversations=map(self._encode, entries))

    def end_conversation(
        self, request: admin_pb2.EndConversationRequest
    ) -> admin_pb2.EndConversationResponse:
        """Forgets one conversation on every leg."""
        ended = self._placement.end(ConversationHash(request.conversation_hash))
        return admin_pb2.EndConversationResponse(ended=ended)

    def _expire(self) -> None:
        self._placement.expire(self._holder.current.compiled.placement)

    def _encode(self, entry: Entry) -> admin_pb2.Conversation:
        key = entry.leg.key
        # The stubs name the contract's enum, whose numbers ours share.
        phase: Any = key.phase
        now_s = self._clock()
        idle = Duration()
        idle.FromNanoseconds(int((now_s - entry.used_at_s) * 1e9))
        return admin_pb2.Conversation(
            conversation_hash=entry.conversation,
            worker_id=key.worker_id,
            instance_id=key.instance_id,
            model=key.model,
            phase=phase,
            dp_rank=entry.rank,
            in_flight=entry.in_flight,
            resident_tokens=round(entry.leg.retention * entry.likely_resident(now_s)),
            idle=idle,
        )


def _parse_token(token: str) -> int | None:
    if not token:
        return None
    if not token.isascii() or not token.isdigit() or len(token) > 20:
        raise FieldError("page_token", "is of no page")
    return int(token)
