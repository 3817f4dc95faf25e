"""What every plan of a soak must be, and what it was."""

from __future__ import annotations

from collections import Counter, deque

from worker_client import Origin, Phase, Plan, RankDirective

_LATENCIES = 100_000
_Conversation = tuple[Phase, str]


class Ledger:
    """Holds each plan against what its conversation was told before.

    Attributes:
        origins: plans by who answered.
        requests: plans so far.
        latencies_s: how long each of the latest plans took.
        longest_s: how long the slowest of all took.
        wrong_ids: another conversation's id, or one that nobody sent.
        missing_ids: no id although a structured carrier names it, or although the client knows the
            conversation under the policy in force.
        moved_ranks: a rank from memory that is not the one that the conversation was told before, under the
            same policy: where another one kept the router's rank in between, nothing was bound any more.
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
        self._known_by: dict[_Conversation, int] = {}
        self._placed: dict[_Conversation, tuple[int, int]] = {}

    def note(
        self, plan: Plan, session_id: str, *, is_structured: bool, is_placing: bool, took_s: float
    ) -> None:
        """Takes note of one plan.

        Args:
            plan: what the client said.
            session_id: what the request named; passed verbatim by every policy of the soak.
            is_structured: whether the client may resolve the carrier alone.
            is_placing: whether the engine is one that is told a rank instead of an id.
            took_s: seconds until the plan was there.
        """
        self.origins[plan.answer.origin.value] += 1
        self.requests += 1
        self.latencies_s.append(took_s)
        self.longest_s = max(self.longest_s, took_s)
        key = (plan.phase, session_id)
        self._follow_policy(plan.answer.policy_revision)
        if is_placing:
            self._check_rank(plan, key)
        else:
            self._check_id(plan, key, is_structured)

    def forget(self, session_id: str) -> None:
        """Drops what is known of a conversation that is over."""
        for phase in Phase:
            self._known_by.pop((phase, session_id), None)
            self._placed.pop((phase, session_id), None)

    def _follow_policy(self, revision: str) -> None:
        if revision != self._revision:
            self._revision = revision
            self._policy_number += 1

    def _check_id(self, plan: Plan, key: _Conversation, is_structured: bool) -> None:
        answer = plan.answer
        if answer.conversation_id is None:
            is_known = self._known_by.get(key) == self._policy_number
            self.missing_ids += is_structured or is_known
        elif answer.conversation_id != key[1]:
            self.wrong_ids += 1
        if answer.origin is Origin.SIDECAR:
            self._known_by[key] = self._policy_number

    def _check_rank(self, plan: Plan, key: _Conversation) -> None:
        answer = plan.answer
        if answer.directive is not RankDirective.PLACE or answer.dp_rank is None:
            return
        told = (self._policy_number, answer.dp_rank)
        # An answer that came too late for its own request is remembered and was never seen here.
        placed = self._placed.get(key)
        is_comparable = placed is not None and placed[0] == self._policy_number
        if answer.origin is Origin.SIDECAR or not is_comparable:
            self._placed[key] = told
        else:
            self.moved_ranks += told != placed
