"""A sample of the decisions in the log, both legs of a request together."""

from __future__ import annotations

import zlib

import structlog

from sidecar.decision.directive import ROLLOUT_BUCKETS
from sidecar.model import Answer, Query
from sidecar.policy.compiled import CompiledPolicy


class DecisionLog:
    """Writes one line for each decision of the sampled requests."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("sidecar")

    def write(self, query: Query, answer: Answer, decision_id: str, policy: CompiledPolicy) -> None:
        """Logs the decision if its request is in the sample of the policy."""
        name = query.request_id or decision_id
        if zlib.crc32(name.encode()) % ROLLOUT_BUCKETS >= policy.logged_buckets:
            return
        self._log.info(
            "decision",
            decision_id=decision_id,
            request_id=query.request_id,
            worker_id=query.worker_id,
            phase=query.phase.name.lower(),
            source=answer.source_detail or "none",
            directive=answer.directive.name.lower(),
            decision=answer.decision.name.lower(),
            id_attached=answer.conversation_id is not None,
            router_rank=query.router_rank,
            conversation_hash=answer.conversation_hash,
            notices=list(answer.notices),
            policy_revision=answer.policy_revision,
        )
