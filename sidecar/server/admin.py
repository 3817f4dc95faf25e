"""RoutingHintsAdminService: looking into the running sidecar."""

from __future__ import annotations

from itertools import chain, islice

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from routing_hints.metrics import MetricStore
from routing_hints.v1 import admin_pb2
from sidecar.decision.recorder import Record, Recorder
from sidecar.policy.file import dump_policy
from sidecar.policy.holder import PolicyHolder
from sidecar.server.conversation_admin import ConversationAdmin
from sidecar.server.error_boundary import ErrorBoundary, NotFoundError
from sidecar.server.stream import StreamServicer
from sidecar.wire.enum_codec import encode_enum
from sidecar.wire.field_limit import FieldError
from sidecar.wire.response_codec import encode_applied, encode_decision_without_ids, encode_finish

MAX_SHOWN_STREAMS = 1_000
SERVICE_NAME = admin_pb2.DESCRIPTOR.services_by_name["RoutingHintsAdminService"].full_name


class AdminServicer:
    """Serves the six RPCs.

    Args:
        conversations: serves the RPCs about single conversations.
        holder: gives the policy in force.
        recorder: the last decisions.
        store: counted since the start.
        streams: gives the open streams.
        started_at: seconds since the epoch.
    """

    def __init__(
        self,
        conversations: ConversationAdmin,
        holder: PolicyHolder,
        recorder: Recorder,
        store: MetricStore,
        streams: StreamServicer,
        started_at: float,
    ) -> None:
        self._conversations = conversations
        self._holder = holder
        self._recorder = recorder
        self._store = store
        self._streams = streams
        self._started_at = _stamp(started_at)

    def get_policy(self, _request: admin_pb2.GetPolicyRequest) -> admin_pb2.GetPolicyResponse:
        """Returns the policy in force."""
        current = self._holder.current
        return admin_pb2.GetPolicyResponse(
            revision=current.compiled.revision,
            identity_epoch=current.compiled.identity_epoch,
            yaml=dump_policy(current.policy),
            origin=current.origin,
            loaded_at=_stamp(current.loaded_at),
            last_error=self._holder.last_error,
        )

    def get_decision(self, request: admin_pb2.GetDecisionRequest) -> admin_pb2.GetDecisionResponse:
        """Returns one of the last decisions; raises NotFoundError if it is not among them."""
        name = request.WhichOneof("by")
        if name is None:
            raise FieldError("by", "must be set")
        if name == "decision_id":
            record = self._recorder.find_by_id(request.decision_id)
        else:
            record = self._recorder.find_by_request(request.request_id)
        if record is None:
            raise NotFoundError("not among the last decisions")
        return _encode_record(record)

    def get_stats(self, _request: admin_pb2.GetStatsRequest) -> admin_pb2.GetStatsResponse:
        """Returns every counter and gauge, and the open streams."""
        return admin_pb2.GetStatsResponse(
            started_at=self._started_at,
            streams=[
                admin_pb2.StreamInfo(
                    worker_id=stream.worker_id,
                    client_version=stream.client_version,
                    opened_at=_stamp(stream.opened_at),
                )
                for stream in islice(self._streams.open_streams.values(), MAX_SHOWN_STREAMS)
            ],
            metrics=[
                admin_pb2.MetricValue(
                    name=metric.name, labels=dict(zip(metric.labels, labels, strict=True)), value=value
                )
                for metric, labels, value in chain(self._store.read_counters(), self._store.read_gauges())
            ],
        )

    def make_handler(self, error_boundary: ErrorBoundary) -> grpc.GenericRpcHandler:
        """Returns the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetPolicy": error_boundary.serve_unary(admin_pb2.GetPolicyRequest, self.get_policy),
                "ListConversations": error_boundary.serve_unary(
                    admin_pb2.ListConversationsRequest, self._conversations.list_conversations
                ),
                "GetConversation": error_boundary.serve_unary(
                    admin_pb2.GetConversationRequest, self._conversations.get_conversation
                ),
                "EndConversation": error_boundary.serve_unary(
                    admin_pb2.EndConversationRequest, self._conversations.end_conversation
                ),
                "GetDecision": error_boundary.serve_unary(admin_pb2.GetDecisionRequest, self.get_decision),
                "GetStats": error_boundary.serve_unary(admin_pb2.GetStatsRequest, self.get_stats),
            },
        )


def _encode_record(record: Record) -> admin_pb2.GetDecisionResponse:
    decision = encode_decision_without_ids(record.decision)
    decision.decision_id = record.decision_id
    response = admin_pb2.GetDecisionResponse(
        decided_at=_stamp(record.decided_at),
        request_id=record.request.request_id,
        worker_id=record.request.worker_id,
        phase=encode_enum(record.request.phase),
        decision=decision,
        id_attached=record.decision.conversation_id is not None,
    )
    if record.applied is not None:
        response.applied.CopyFrom(encode_applied(record.applied))
        response.unchanged = record.unchanged
    if record.finish is not None:
        response.finish.CopyFrom(encode_finish(record.finish))
    return response


def _stamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
