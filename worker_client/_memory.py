"""What the client remembers of conversations, to decide for the sidecar while that does not respond."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from routing_hints.vocabulary import AdpRouter, PlacementState, RankDirective
from worker_client._engine import EngineProfile
from worker_client._lru_map import LruMap
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._request import RequestFacts
from worker_client._selected_carriers import SelectedCarriers

MemoryKey = bytes


@dataclass(slots=True)
class _Entry:
    decision: Decision
    is_pinned_by_engine: bool
    bound_rank: int | None


class Memory:
    """Decisions by conversation, the ones used longest ago forgotten first."""

    def __init__(self, max_entries: int) -> None:
        self._entries: LruMap[MemoryKey, _Entry] = LruMap(max_entries)

    def holds(self, key: MemoryKey, policy: ClientPolicy) -> bool:
        """Returns whether `recall` has a decision."""
        entry = self._entries.get(key)
        return entry is not None and entry.decision.policy_revision == policy.revision

    def recall(self, key: MemoryKey, policy: ClientPolicy) -> Decision | None:
        """Returns what an earlier decision says about the conversation's next request.

        None if there is none under `key` that `policy` still allows. A rank placed on an engine whose own
        router pins was for the first turn only: from then on the engine's binding decides.
        """
        entry = self._entries.get(key)
        if entry is None or entry.decision.policy_revision != policy.revision:
            return None
        lasting = replace(entry.decision, origin=Origin.MEMORY, placement=PlacementState.NONE, decision_id="")
        if entry.is_pinned_by_engine:
            return replace(lasting, directive=RankDirective.WITHHOLD, dp_rank=None)
        return lasting

    def bound_rank(self, key: MemoryKey) -> int | None:
        """Returns the rank that the conversation is bound to, under whatever policy it was bound."""
        entry = self._entries.get(key)
        return entry.bound_rank if entry is not None else None

    def remember(self, key: MemoryKey, decision: Decision, engine: EngineProfile) -> None:
        """Keeps a decision for the conversation's next request."""
        if not decision.conversation_hash:
            return
        placed = decision.directive is RankDirective.PLACE
        bound_rank = decision.dp_rank
        if decision.directive is RankDirective.WITHHOLD:
            bound_rank = self.bound_rank(key)  # kept where it was placed
        pinned = placed and engine.adp_router is AdpRouter.CONVERSATION
        self._entries.put(key, _Entry(decision, pinned, bound_rank))


def make_key(facts: RequestFacts, engine: EngineProfile, carriers: SelectedCarriers) -> MemoryKey:
    """Returns what tells this conversation in this phase from all others.

    A hash over everything that can change the sidecar's decision, and nothing that changes with each
    request; raw ids are not kept. `repr` quotes, so that no two conversations read the same.
    """
    agent, control = facts.agent_context, facts.session_control
    parts = (
        int(facts.phase),
        engine.instance_id,
        facts.model,
        facts.tenant,
        facts.conversation_id,
        agent
        and (agent.session_id, agent.parent_session_id, agent.trajectory_id, agent.parent_trajectory_id),
        control and control.session_id,
        carriers.headers,  # with their names, which another policy might not read
        carriers.metadata,
        carriers.body,
        carriers.annotations,
    )
    return blake2b(repr(parts).encode(), digest_size=16).digest()
