"""RoutingHintsAdminService: looking into the running sidecar."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from routing_hints.v1 import admin_pb2
from sidecar.decision.recorder import Record, Recorder
from sidecar.policy.file import dump_policy
from sidecar.policy.holder import PolicyHolder
from sidecar.server.conversation_admin import ConversationAdmin
from sidecar.server.error_boundary import Edge, NotFoundError
from sidecar.telemetry.counters import Counters
from sidecar.wire.field_limit import FieldError
from sidecar.wire.response_codec import encode_answer_without_ids, encode_finish

SERVICE_NAME = admin_pb2.DESCRIPTOR.services_by_name["RoutingHintsAdminService"].full_name


class AdminServicer:
    """Serves the six RPCs.

    Args:
        conversations: serves the RPCs about single conversations.
        holder: gives the policy in force.
        recorder: the last decisions.
        counters: counted since the start.
        started_at: seconds since the epoch.
    """

    def __init__(
        self,
        conversations: ConversationAdmin,
        holder: PolicyHolder,
        recorder: Recorder,
        counters: Counters,
        started_at: float,
    ) -> None:
        self._conversations = conversations
        self._holder = holder
        self._recorder = recorder
        self._counters = counters
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
        """Returns the counters, and the gauges about placement in whole numbers."""
        # The contract's counter is an integer, which the share in another gauge would not survive.
        gauges = (
            (name, labels, round(value))
            for name, labels, value in self._counters.read_gauges()
            if name.startswith("placement_")
        )
        return admin_pb2.GetStatsResponse(
            started_at=self._started_at,
            open_streams=self._counters.open_streams,
            counters=[
                admin_pb2.Counter(name=name, labels=dict(labels), value=value)
                for name, labels, value in (*self._counters, *gauges)
            ],
        )

    def make_handler(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Returns the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetPolicy": edge.serve_unary(admin_pb2.GetPolicyRequest, self.get_policy),
                "ListConversations": edge.serve_unary(
                    admin_pb2.ListConversationsRequest, self._conversations.list_conversations
                ),
                "GetConversation": edge.serve_unary(
                    admin_pb2.GetConversationRequest, self._conversations.get_conversation
                ),
                "EndConversation": edge.serve_unary(
                    admin_pb2.EndConversationRequest, self._conversations.end_conversation
                ),
                "GetDecision": edge.serve_unary(admin_pb2.GetDecisionRequest, self.get_decision),
                "GetStats": edge.serve_unary(admin_pb2.GetStatsRequest, self.get_stats),
            },
        )


def _encode_record(record: Record) -> admin_pb2.GetDecisionResponse:
    # The stubs name the contract's enum, whose numbers ours share.
    phase: Any = record.query.phase
    response = admin_pb2.GetDecisionResponse(
        decided_at=_stamp(record.decided_at),
        request_id=record.query.request_id,
        worker_id=record.query.worker_id,
        phase=phase,
        answer=encode_answer_without_ids(record.answer, record.decision_id),
        id_attached=record.answer.conversation_id is not None,
    )
    if record.finish is not None:
        response.finish.CopyFrom(encode_finish(record.finish))
    return response


def _stamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
