"""One decision with its side effects: it is recorded, counted, and where asked for logged and traced."""

from __future__ import annotations

import time
from collections.abc import Callable

from routing_hints.v1 import service_pb2
from sidecar.answer_codec import encode_answer
from sidecar.census import Census
from sidecar.compiled import CompiledPolicy
from sidecar.counters import Counters
from sidecar.decision_log import DecisionLog
from sidecar.enrich import decide
from sidecar.model import Answer, Query
from sidecar.policy_file import PolicyHolder
from sidecar.recorder import Recorder
from sidecar.request_codec import UNKNOWN_CALLER, Caller, decode_query
from sidecar.tracing import DecisionTracer


class Decider:
    """Decides by the policy in force.

    Args:
        holder: gives the policy.
        recorder: keeps the decisions.
        counters: counts them.
        census: hears of every conversation.
        observe_latency_s: gets the seconds that a decision took.
        tracer: None makes no spans.
    """

    def __init__(
        self,
        holder: PolicyHolder,
        recorder: Recorder,
        counters: Counters,
        census: Census,
        observe_latency_s: Callable[[float], None],
        tracer: DecisionTracer | None,
    ) -> None:
        self._holder = holder
        self._recorder = recorder
        self._counters = counters
        self._census = census
        self._observe_latency_s = observe_latency_s
        self._tracer = tracer
        self._log = DecisionLog()

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
        started_s = time.perf_counter()
        policy = self._holder.current.compiled
        query = decode_query(request, caller)
        answer = decide(query, policy)
        decision_id = self._recorder.record(query, answer, item)
        response = encode_answer(answer, decision_id)
        took_s = time.perf_counter() - started_s
        self._observe_latency_s(took_s)
        self._count(query, answer, policy)
        if policy.logged_buckets:
            self._log.write(query, answer, decision_id, policy)
        if self._tracer is not None:
            now_ns = time.time_ns()
            self._tracer.trace(query, answer, decision_id, now_ns - int(took_s * 1e9), now_ns)
        return response

    def _count(self, query: Query, answer: Answer, policy: CompiledPolicy) -> None:
        self._counters.add(
            "decisions",
            ("decision", answer.decision.name.lower()),
            ("directive", answer.directive.name.lower()),
            ("mode", policy.mode),
            ("phase", query.phase.name.lower()),
            ("source", answer.source.name.lower()),
        )
        self._census.note_request(query.phase, answer.conversation_hash)
        for notice in answer.notices:
            self._counters.add("notices", ("notice", notice))
        if answer.session_final:
            self._counters.add("final_requests")
