"""Admin RPCs for conversations: they show and remove entries of the placement table."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration

from routing_hints.conversation_id import ConversationHash
from routing_hints.v1 import admin_pb2
from sidecar.decision.service import DecisionService
from sidecar.placement.table import Entry
from sidecar.server.error_boundary import NotFoundError
from sidecar.wire.enum_codec import encode_enum
from sidecar.wire.field_limit import FieldError

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1_000


class ConversationAdmin:
    """Serves ListConversations, GetConversation and EndConversation.

    Args:
        service: has the placement table.
        clock: the one that it uses.
    """

    def __init__(self, service: DecisionService, clock: Callable[[], float]) -> None:
        self._service = service
        self._clock = clock

    def list_conversations(
        self, request: admin_pb2.ListConversationsRequest
    ) -> admin_pb2.ListConversationsResponse:
        """Returns a page of conversations; raises FieldError for an invalid page size or token.

        A conversation that is used between two pages moves to the front, so later pages omit it.
        """
        if request.page_size > MAX_PAGE_SIZE:
            raise FieldError("page_size", f"must be at most {MAX_PAGE_SIZE}")
        before = _parse_token(request.page_token)
        size = request.page_size or DEFAULT_PAGE_SIZE
        entries = self._service.placement.list_used_before(before, request.worker_id, size + 1)
        page = entries[:size]
        return admin_pb2.ListConversationsResponse(
            conversations=map(self._encode, page),
            next_page_token=str(page[-1].use_number) if len(entries) > size else "",
        )

    def get_conversation(
        self, request: admin_pb2.GetConversationRequest
    ) -> admin_pb2.GetConversationResponse:
        """Returns one conversation; raises NotFoundError if no engine phase has it."""
        name = ConversationHash(request.conversation_hash)
        entries = self._service.placement.find(name)
        if not entries:
            raise NotFoundError("no engine phase has this conversation")
        return admin_pb2.GetConversationResponse(conversations=map(self._encode, entries))

    def end_conversation(
        self, request: admin_pb2.EndConversationRequest
    ) -> admin_pb2.EndConversationResponse:
        """Removes one conversation from every engine phase."""
        ended = self._service.end_conversation(ConversationHash(request.conversation_hash))
        return admin_pb2.EndConversationResponse(ended=ended)

    def _encode(self, entry: Entry) -> admin_pb2.Conversation:
        key = entry.engine_phase.key
        now_s = self._clock()
        idle = Duration()
        idle.FromNanoseconds(int((now_s - entry.used_at_s) * 1e9))
        return admin_pb2.Conversation(
            conversation_hash=entry.conversation,
            worker_id=key.worker_id,
            instance_id=key.instance_id,
            model=key.model,
            phase=encode_enum(key.phase),
            dp_rank=entry.rank,
            in_flight=entry.in_flight,
            resident_tokens=round(entry.engine_phase.retention * entry.likely_resident(now_s)),
            idle=idle,
        )


def _parse_token(token: str) -> int | None:
    if not token:
        return None
    if not token.isascii() or not token.isdigit() or len(token) > 20:
        raise FieldError("page_token", "is not a valid page token")
    return int(token)
