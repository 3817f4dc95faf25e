"""One decision with its side effects: it is recorded and counted."""

from __future__ import annotations

from routing_hints.v1 import service_pb2
from sidecar.answer_codec import encode_answer
from sidecar.counters import Counters
from sidecar.enrich import decide
from sidecar.policy_file import PolicyHolder
from sidecar.recorder import Recorder
from sidecar.request_codec import UNKNOWN_CALLER, Caller, decode_query


class Decider:
    """Decides by the policy in force."""

    def __init__(self, holder: PolicyHolder, recorder: Recorder, counters: Counters) -> None:
        self._holder = holder
        self._recorder = recorder
        self._counters = counters

    def decide(
        self,
        request: service_pb2.EnrichRequest,
        caller: Caller = UNKNOWN_CALLER,
        item: tuple[int, int] | None = None,
    ) -> service_pb2.EnrichResponse:
        """Returns the answer to a request.

        Args:
            request: as it came.
            caller: who sent it, as far as a stream's hello said.
            item: stream and `seq` that its Finish will name.

        Raises:
            FieldError: a field breaks its documented range.
        """
        query = decode_query(request, caller)
        answer = decide(query, self._holder.current.compiled)
        decision_id = self._recorder.record(query, answer, item)
        self._counters.add(
            "decisions",
            ("directive", answer.directive.name.lower()),
            ("phase", query.phase.name.lower()),
            ("source", answer.source.name.lower()),
        )
        for notice in answer.notices:
            self._counters.add("notices", ("notice", notice))
        if answer.session_final:
            self._counters.add("final_requests")
        return encode_answer(answer, decision_id)
