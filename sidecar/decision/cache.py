"""From a question to its answer, before placement; what was asked about before is not decided again.

A decision is a pure function of its subject, the policy and the carriers that the guard distrusts, and most
questions repeat an earlier one: a conversation's next turn asks about the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from typing import NamedTuple

from routing_hints.v1 import service_pb2
from sidecar.decision.decide import decide
from sidecar.decision.directive import ROLLOUT_BUCKETS
from sidecar.model import Answer, Query, RankDirective
from sidecar.policy.compiled import CompiledPolicy
from sidecar.wire.request_codec import Caller, Subject, decode_again, decode_query, read_subject
from sidecar.wire.response_codec import encode_answer

MAX_REMEMBERED = 4_096
"""Subjects whose answers are kept; the one that was asked about longest ago is forgotten first."""


class Resolution(NamedTuple):
    """What follows from a question and the policy alone."""

    query: Query
    """Without identity and tenant, which can be long and the decision alone reads."""
    answer: Answer
    encoded: bytes
    """The answer's message, without the id of a decision; empty where placement has the last word."""


class Resolver:
    """Answers by one policy, and forgets its answers with that."""

    def __init__(self) -> None:
        self._policy: CompiledPolicy | None = None
        self._distrusted: Set[str] = frozenset()
        self._remembered: OrderedDict[Subject, Resolution] = OrderedDict()

    def resolve(
        self,
        request: service_pb2.EnrichRequest,
        caller: Caller,
        policy: CompiledPolicy,
        distrusted: Set[str],
    ) -> Resolution:
        """Returns what `enrich.decide` says of a request, whether it was asked before or not.

        Args:
            request: as it came.
            caller: who sent it.
            policy: the policy in force.
            distrusted: names of carriers whose ids are not attached.

        Raises:
            FieldError: a field breaks its documented range.
        """
        if policy is not self._policy or distrusted != self._distrusted:
            self._policy, self._distrusted = policy, distrusted
            self._remembered.clear()
        subject = read_subject(request)
        known = self._remembered.get(subject) if subject is not None else None
        if subject is not None and known is not None:
            self._remembered.move_to_end(subject)
            return Resolution(decode_again(known.query, request, caller), known.answer, known.encoded)
        query = decode_query(request, caller)
        answer = decide(query, policy, distrusted)
        is_placed = answer.directive is RankDirective.PLACE
        encoded = b"" if is_placed else encode_answer(answer, "").SerializeToString()
        resolution = Resolution(decode_again(query, request, caller), answer, encoded)
        if subject is not None and not _depends_on_request(answer, policy, distrusted):
            self._remembered[subject] = resolution
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return resolution


def _depends_on_request(answer: Answer, policy: CompiledPolicy, distrusted: Set[str]) -> bool:
    """Tells whether an answer holds for one request only: a rollout goes by its id if there is no other."""
    has_id = answer.conversation_hash and answer.source_detail not in distrusted
    return policy.rollout_buckets < ROLLOUT_BUCKETS and not has_id
