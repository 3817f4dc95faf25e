"""What the engine reports of where a request ran, and whether a conversation stays where it was."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from worker_client._lru_map import LruMap
from worker_client._model import Phase
from worker_client._request import MAX_RANK
from worker_client._untrusted_input import as_count, as_mapping, dig

_WINDOW = 50
_MIN_SAMPLES = 8
_MOVED_SHARE = 0.5


class Effect(enum.Enum):
    """A conversation's rank, held against the one observed the time before."""

    FIRST = "first"
    SAME = "same"
    MOVED = "moved"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Observation:
    """What was seen of one request.

    Attributes:
        rank: attention-DP rank that computed the prompt, None if not reported.
        cached_tokens: prompt tokens found in that rank's KV cache, None if not reported.
        instance: the engine that `rank` belongs to.
    """

    rank: int | None = None
    cached_tokens: int | None = None
    instance: str = ""

    def read(self, output: object) -> None:
        """Takes what an engine output or a worker's response chunk reports. May raise on odd objects.

        Args:
            output: TensorRT-LLM's `RequestOutput`, or a mapping in the shape of Dynamo's chunks. The rank is
                `disaggregated_params.ctx_dp_rank`, which the context phase alone fills in.
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
    """Follows each conversation's rank over its turns, per leg.

    `is_moving` holds once most of the latest returns of a leg were to another rank: a few moves are
    normal, since an engine lets a full rank overflow. Only turns of which the engine was told the
    conversation on both occasions count as returns, and only those to the same engine start: another one,
    behind a router that is not sticky or after a restart, was never asked to honour anything.
    """

    def __init__(self, max_conversations: int) -> None:
        self._last: LruMap[tuple[Phase, str], tuple[str, int, bool]] = LruMap(max_conversations)
        self._returns: dict[Phase, deque[bool]] = {}

    def track(
        self, phase: Phase, conversation_hash: str, observation: Observation, *, is_engine_told: bool
    ) -> Effect:
        """Returns how this turn's rank compares with the turn before, and remembers it."""
        if observation.rank is None or not conversation_hash:
            return Effect.UNKNOWN
        key = (phase, conversation_hash)
        before = self._last.get(key)
        self._last.put(key, (observation.instance, observation.rank, is_engine_told))
        if before is None:
            return Effect.FIRST
        instance, rank, was_engine_told = before
        is_same = (instance, rank) == (observation.instance, observation.rank)
        if is_engine_told and was_engine_told and instance == observation.instance:
            self._returns.setdefault(phase, deque(maxlen=_WINDOW)).append(is_same)
        return Effect.SAME if is_same else Effect.MOVED

    def is_moving(self, phase: Phase) -> bool:
        """Returns whether this leg's conversations keep moving."""
        returns = self._returns.get(phase, ())
        moved = sum(1 for stayed in returns if not stayed)
        return len(returns) >= _MIN_SAMPLES and moved >= len(returns) * _MOVED_SHARE
