"""Checks every plan of a soak."""

from __future__ import annotations

from collections import Counter, deque

from worker_client import Decision, Origin, Phase, RankDirective

_LATENCIES = 100_000
_Conversation = tuple[Phase, str]


class Ledger:
    """Checks each plan against the earlier decisions of its conversation.

    Attributes:
        origins: plans by who decided.
        requests: plans so far.
        latencies_s: how long each of the latest plans took.
        longest_s: how long the slowest of all took.
        wrong_ids: another conversation's id, or one that nobody sent.
        missing_ids: no id although a structured carrier names it, or although the client remembers the
            conversation under the policy in force.
        moved_ranks: a rank from memory, reused or in an outage, that is not the conversation's earlier one
            under the same policy (if another policy kept the router's rank in between, nothing is bound any
            more).
        errors: exceptions by type.
        cancelled: requests that were cancelled on purpose.
    """

    def __init__(self) -> None:
        self.origins: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.requests = 0
        self.longest_s = 0.0
        self.latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self.wrong_ids = 0
        self.missing_ids = 0
        self.moved_ranks = 0
        self.cancelled = 0
        # Policies count from the first; one that comes back is another, since memory holds what came last.
        self._policy_number = 0
        self._revision = ""
        self._remembered_by: dict[_Conversation, int] = {}
        self._placed: dict[_Conversation, tuple[int, int]] = {}

    def note(
        self,
        phase: Phase,
        decision: Decision,
        session_id: str,
        *,
        is_structured: bool,
        is_placing: bool,
        took_s: float,
    ) -> None:
        """Checks one plan.

        Args:
            phase: the plan's phase.
            decision: the plan's decision.
            session_id: what the request named; passed verbatim by every policy of the soak.
            is_structured: whether the client may resolve the carrier alone.
            is_placing: whether the engine takes a rank instead of an id.
            took_s: seconds until the plan was ready.
        """
        self.origins[decision.origin.value] += 1
        self.requests += 1
        self.latencies_s.append(took_s)
        self.longest_s = max(self.longest_s, took_s)
        key = (phase, session_id)
        self._follow_policy(decision.policy_revision)
        if is_placing:
            self._check_rank(decision, key)
        else:
            self._check_id(decision, key, is_structured)

    def forget(self, session_id: str) -> None:
        """Drops a conversation that is over."""
        for phase in Phase:
            self._remembered_by.pop((phase, session_id), None)
            self._placed.pop((phase, session_id), None)

    def _follow_policy(self, revision: str) -> None:
        if revision != self._revision:
            self._revision = revision
            self._policy_number += 1

    def _check_id(self, decision: Decision, key: _Conversation, is_structured: bool) -> None:
        if decision.conversation_id is None:
            is_remembered = self._remembered_by.get(key) == self._policy_number
            self.missing_ids += is_structured or is_remembered
        elif decision.conversation_id != key[1]:
            self.wrong_ids += 1
        if decision.origin is Origin.SIDECAR:
            self._remembered_by[key] = self._policy_number

    def _check_rank(self, decision: Decision, key: _Conversation) -> None:
        if decision.directive is not RankDirective.PLACE or decision.dp_rank is None:
            return
        sent = (self._policy_number, decision.dp_rank)
        # A response that missed its own request's deadline is remembered by the client and never seen here.
        placed = self._placed.get(key)
        is_comparable = placed is not None and placed[0] == self._policy_number
        if decision.origin is Origin.SIDECAR or not is_comparable:
            self._placed[key] = sent
        else:
            self.moved_ranks += sent != placed
