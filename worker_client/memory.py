"""What the client remembers of conversations, to answer for the sidecar while that is silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from worker_client.engine import EngineProfile
from worker_client.lru import LruMap
from worker_client.model import AdpRouter, Answer, ClientPolicy, Decision, Origin, RankDirective
from worker_client.request import RequestFacts, dig, read_text

MemoryKey = bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Answer
    bound_rank: int | None


class Memory:
    """Answers by conversation, the ones used longest ago forgotten first."""

    def __init__(self, max_entries: int) -> None:
        self._entries: LruMap[MemoryKey, _Entry] = LruMap(max_entries)

    def recall(self, key: MemoryKey, policy: ClientPolicy) -> Answer | None:
        """Returns the answer remembered under `key`, None if there is none that `policy` still allows."""
        entry = self._entries.get(key)
        if entry is None or entry.answer.policy_revision != policy.revision:
            return None
        return entry.answer

    def bound_rank(self, key: MemoryKey) -> int | None:
        """Returns the rank that the conversation is bound to, under whatever policy it was bound."""
        entry = self._entries.get(key)
        return entry.bound_rank if entry is not None else None

    def remember(self, key: MemoryKey, answer: Answer, engine: EngineProfile) -> None:
        """Keeps the part of an answer that holds for the conversation's next request.

        A rank placed on an engine whose own router pins was for the first turn only: from then on the
        engine's binding decides.
        """
        if not answer.conversation_hash:
            return
        placed = answer.directive is RankDirective.PLACE
        pinned_by_engine = placed and engine.adp_router is AdpRouter.CONVERSATION
        lasting = replace(
            answer,
            origin=Origin.MEMORY,
            directive=RankDirective.WITHHOLD if pinned_by_engine else answer.directive,
            dp_rank=None if pinned_by_engine else answer.dp_rank,
            decision=Decision.NONE,
            decision_id="",
        )
        bound_rank = answer.dp_rank
        if answer.directive is RankDirective.WITHHOLD:
            bound_rank = self.bound_rank(key)  # kept where it was placed
        self._entries.put(key, _Entry(lasting, bound_rank))


def make_key(facts: RequestFacts, engine: EngineProfile, policy: ClientPolicy) -> MemoryKey:
    """Returns what tells this conversation on this leg from all others.

    A hash over everything that can change the sidecar's answer, and nothing that changes with each
    request; raw ids are not kept.
    """
    digest = blake2b(digest_size=16)
    for name, value in _key_parts(facts, engine, policy):
        for part in (name, value):
            encoded = part.encode(errors="surrogatepass")
            digest.update(len(encoded).to_bytes(4, "big"))
            digest.update(encoded)
    return digest.digest()


def _key_parts(facts: RequestFacts, engine: EngineProfile, policy: ClientPolicy) -> Iterator[tuple[str, str]]:
    """Yields name and value of each part; names keep apart what another policy would read elsewhere."""
    yield "phase", str(int(facts.phase))
    yield "engine", engine.instance_id
    yield "model", facts.model
    yield "tenant", facts.tenant
    yield "conversation_id", facts.conversation_id
    agent = facts.agent_context
    if agent is not None:
        yield "session", agent.session_id
        yield "parent-session", agent.parent_session_id
        yield "trajectory", agent.trajectory_id
        yield "parent-trajectory", agent.parent_trajectory_id
    if facts.session_control is not None:
        yield "session-control", facts.session_control.session_id
    for name in policy.headers:
        if value := facts.headers.get(name):
            yield f"header:{name}", value
    for name in policy.metadata:
        if value := read_text(facts.metadata.get(name), []):
            yield f"metadata:{name}", value
    for name in policy.body:
        if value := read_text(dig(facts.body, name), []):
            yield f"body:{name}", value
    for annotation in facts.annotations:
        if annotation.startswith(policy.annotations):
            yield "annotation", annotation
