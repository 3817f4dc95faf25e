"""The rank and cached tokens that an engine reports, and whether conversations keep their rank."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from routing_hints.vocabulary import Phase
from worker_client._lru_map import LruMap
from worker_client._request import MAX_RANK
from worker_client._untrusted_input import as_count, as_mapping, dig

_WINDOW = 50
_MIN_SAMPLES = 8
_MOVED_SHARE = 0.5


class RankChange(enum.Enum):
    """A conversation's observed rank compared with the previously observed one."""

    FIRST = "first"
    SAME = "same"
    MOVED = "moved"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Observation:
    """What the engine reported about one request.

    Attributes:
        rank: attention-DP rank that computed the prompt, None if not reported.
        cached_tokens: prompt tokens found in that rank's KV cache, None if not reported.
        instance: the engine that `rank` belongs to.
    """

    rank: int | None = None
    cached_tokens: int | None = None
    instance: str = ""

    def read(self, output: object) -> None:
        """Reads an engine output or a response chunk of a worker. May raise on unexpected objects.

        Args:
            output: TensorRT-LLM's `RequestOutput`, or a mapping in the shape of Dynamo's chunks. The rank is
                `disaggregated_params.ctx_dp_rank`, which only the context phase sets.
        """
        chunk = as_mapping(output)
        if chunk:
            rank = as_count(dig(chunk, "disaggregated_params.ctx_dp_rank"), most=MAX_RANK)
            cached = as_count(dig(chunk, "completion_usage.prompt_tokens_details.cached_tokens"))
        else:
            outputs = getattr(output, "outputs", None)
            params = getattr(outputs[0] if outputs else output, "disaggregated_params", None)
            rank = as_count(getattr(params, "ctx_dp_rank", None), most=MAX_RANK)
            cached = as_count(getattr(output, "cached_tokens", None))
        if rank is not None:
            self.rank = rank
        if cached is not None:
            self.cached_tokens = cached


class RankTracker:
    """Follows each conversation's rank over its turns, per phase.

    `is_moving` holds once most of the latest returns of a phase were to another rank; a few moves are normal,
    since an engine moves requests away from a full rank. A turn counts as a return only if the engine got the
    id or a placed rank in it and in the turn before, and only within one engine start: another one, behind a
    router that is not sticky or after a restart, has nothing to return to.
    """

    def __init__(self, max_conversations: int) -> None:
        self._last: LruMap[tuple[Phase, str], tuple[str, int, bool]] = LruMap(max_conversations)
        self._returns: dict[Phase, deque[bool]] = {}

    def track(
        self, phase: Phase, conversation_hash: str, observation: Observation, *, is_directed: bool
    ) -> RankChange:
        """Compares this turn's rank with the previous turn's, and remembers it.

        `is_passed` is whether the engine got the conversation's id or a placed rank with this turn.
        """
        if observation.rank is None or not conversation_hash:
            return RankChange.UNKNOWN
        key = (phase, conversation_hash)
        before = self._last.get(key)
        self._last.put(key, (observation.instance, observation.rank, is_directed))
        if before is None:
            return RankChange.FIRST
        instance, rank, was_directed = before
        is_same = (instance, rank) == (observation.instance, observation.rank)
        if is_directed and was_directed and instance == observation.instance:
            self._returns.setdefault(phase, deque(maxlen=_WINDOW)).append(is_same)
        return RankChange.SAME if is_same else RankChange.MOVED

    def is_moving(self, phase: Phase) -> bool:
        """Returns whether the conversations of a phase keep moving to other ranks."""
        returns = self._returns.get(phase, ())
        moved = sum(1 for stayed in returns if not stayed)
        return len(returns) >= _MIN_SAMPLES and moved >= len(returns) * _MOVED_SHARE
