"""The decisions that the client remembers: applied at once where that is allowed, else in an outage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from routing_hints.vocabulary import AdpRouter, PlacementState, RankDirective
from worker_client._engine import EngineProfile
from worker_client._lru_map import LruMap
from worker_client._model import ClientPolicy, Decision, Origin
from worker_client._request import RequestFacts
from worker_client._selected_carriers import SelectedCarriers

MemoryKey = bytes


class Confirmation(NamedTuple):
    """A result of the sidecar that states a decision, or that it is unchanged."""

    stream_number: int
    seq: int
    generation: int
    """The reuse generation that it was decided under."""
    at_s: float
    """The loop's time."""


@dataclass(slots=True)
class _Entry:
    decision: Decision
    is_pinned_by_engine: bool
    bound_rank: int | None
    confirmation: Confirmation
    is_blocked: bool = False
    """Whether a request ended otherwise than decided, so that the next one waits for the sidecar."""


class Memory:
    """Decisions by key, the least recently used forgotten first."""

    def __init__(self, max_entries: int) -> None:
        self._entries: LruMap[MemoryKey, _Entry] = LruMap(max_entries)
        self._keys: dict[str, set[MemoryKey]] = {}
        # Ranks of conversations that began while the sidecar was unavailable.
        self._observed_ranks: LruMap[MemoryKey, int] = LruMap(max_entries)

    def find_reusable(
        self, key: MemoryKey, policy: ClientPolicy, stream_number: int, now_s: float
    ) -> Decision | None:
        """Returns the decision to apply at once, None if the request has to wait for the sidecar.

        A conversation that it placed is retained by now.

        Args:
            key: the request's.
            policy: the policy in force.
            stream_number: the stream that is up; 0 for none.
            now_s: the loop's time.
        """
        entry = self._entries.get(key)
        if entry is None or entry.is_blocked or not entry.decision.reusable or not stream_number:
            return None
        stream, _, generation, at_s = entry.confirmation
        if stream != stream_number or generation != policy.generation:
            return None
        if entry.decision.policy_revision != policy.revision or now_s - at_s >= policy.reuse_max_age_s:
            return None
        is_placed = entry.decision.placement is not PlacementState.NONE
        placement = PlacementState.RETAINED if is_placed else PlacementState.NONE
        return replace(entry.decision, origin=Origin.REUSED, placement=placement)

    def holds(self, key: MemoryKey, policy: ClientPolicy) -> bool:
        """Returns whether `recall` has a decision."""
        entry = self._entries.get(key)
        return entry is not None and entry.decision.policy_revision == policy.revision

    def recall(self, key: MemoryKey, policy: ClientPolicy) -> Decision | None:
        """Returns what an earlier decision means for the conversation's next request, in an outage.

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
        if entry is not None and entry.bound_rank is not None:
            return entry.bound_rank
        return self._observed_ranks.get(key)

    def remember(
        self, key: MemoryKey, decision: Decision, engine: EngineProfile, confirmation: Confirmation
    ) -> None:
        """Remembers a decision for the conversation's next request, unless a newer one is remembered."""
        if not decision.conversation_hash:
            return
        before = self._entries.get(key)
        if before is not None and before.confirmation[:2] > confirmation[:2]:
            return
        placed = decision.directive is RankDirective.PLACE
        bound_rank = decision.dp_rank
        if decision.directive is RankDirective.WITHHOLD:
            bound_rank = self.bound_rank(key)  # kept where it was placed
        pinned = placed and engine.adp_router is AdpRouter.CONVERSATION
        self._put(key, _Entry(decision, pinned, bound_rank, confirmation))

    def confirm(self, key: MemoryKey, confirmation: Confirmation) -> None:
        """Records that the remembered decision still holds."""
        entry = self._entries.get(key)
        if entry is not None and entry.confirmation[:2] <= confirmation[:2]:
            entry.confirmation, entry.is_blocked = confirmation, False

    def block(self, key: MemoryKey) -> None:
        """Lets the next request of a conversation wait for the sidecar."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_blocked = True

    def note_rank(self, key: MemoryKey, rank: int) -> None:
        """Records where a request ran that the sidecar did not decide."""
        self._observed_ranks.put(key, rank)

    def forget(self, conversation_hash: str) -> None:
        """Forgets an ended conversation, its rank included."""
        for key in self._keys.pop(conversation_hash, ()):
            self._entries.discard(key)
            self._observed_ranks.discard(key)

    def _put(self, key: MemoryKey, entry: _Entry) -> None:
        before = self._entries.get(key)
        if before is not None:
            self._unlink(key, before)  # another policy may name another conversation
        self._keys.setdefault(entry.decision.conversation_hash, set()).add(key)
        evicted = self._entries.put(key, entry)
        if evicted is not None:
            self._unlink(*evicted)

    def _unlink(self, key: MemoryKey, entry: _Entry) -> None:
        conversation_hash = entry.decision.conversation_hash
        keys = self._keys[conversation_hash]
        keys.discard(key)
        if not keys:
            del self._keys[conversation_hash]


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
        facts.router_rank is not None,
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
