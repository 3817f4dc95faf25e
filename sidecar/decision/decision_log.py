"""A sample of the decisions in the log, both phases of a request together."""

from __future__ import annotations

import zlib

import structlog

from sidecar.model import Decision, Request
from sidecar.policy.compiled import ROLLOUT_BUCKETS, CompiledPolicy


class DecisionLog:
    """Writes one line for each decision of the sampled requests."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("sidecar")

    def write(self, request: Request, decision: Decision, decision_id: str, policy: CompiledPolicy) -> None:
        """Logs the decision if its request is in the sample of the policy."""
        name = request.request_id or decision_id
        if zlib.crc32(name.encode()) % ROLLOUT_BUCKETS >= policy.logged_buckets:
            return
        self._log.info(
            "decision",
            decision_id=decision_id,
            request_id=request.request_id,
            worker_id=request.worker_id,
            phase=request.phase.name.lower(),
            source=decision.source_detail or "none",
            directive=decision.directive.name.lower(),
            placement=decision.placement.name.lower(),
            id_attached=decision.conversation_id is not None,
            router_rank=request.router_rank,
            conversation_hash=decision.conversation_hash,
            notices=list(decision.notices),
            policy_revision=decision.policy_revision,
        )
