"""The engine's outside: `LLM.args` and `LLM.generate_async` of one release."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from examples.fake_engine.params import (
    BlockReuseConfig,
    BlockReuseKvCacheConfig,
    KvCacheConfig,
    TorchLlmArgs,
)
from examples.fake_engine.release import Release
from examples.fake_engine.result import GenerationResult
from examples.fake_engine.router import AdpRouter, ConversationRouter, DefaultRouter, KvCacheAwareRouter
from examples.fake_engine.scheduler import EngineCall, Scheduler

ROUTERS = ("default", "kv_cache_aware", "conversation", "ignores_id")


class FakeLLM:
    """Fake of `tensorrt_llm.LLM` of one release. A request runs while its result is iterated.

    Args:
        release: Decides which parameters and keywords exist.
        dp_size: Number of attention-DP ranks; 1 turns attention DP off.
        router: `default`, `kv_cache_aware`, `conversation`, or `ignores_id`: configured like
            `conversation`, but balances; what a flag without effect looks like.
        records_first_rank: See `ConversationRouter`.
        per_conversation_reuse: The KV block-reuse policy is per conversation.
        max_active: Hard cap of requests per rank.
        max_sessions: Conversations that the conversation router remembers.
        config_as_dict: `args.attention_dp_config` is a mapping, as a YAML file gives it.
        token_interval_s: Seconds that each generated token takes.
        on_end: Called with each call when it is over.

    Attributes:
        args: The engine's configuration.
        calls: The recorded calls, oldest first; the last 100,000.

    Raises:
        ValueError: The release cannot be configured like that.
    """

    def __init__(
        self,
        release: Release,
        dp_size: int,
        *,
        router: str = "default",
        records_first_rank: bool = False,
        per_conversation_reuse: bool = False,
        max_active: int = 64,
        max_sessions: int = 65_536,
        config_as_dict: bool = False,
        token_interval_s: float = 0.0,
        on_end: Callable[[EngineCall], None] = lambda call: None,
    ) -> None:
        if router not in ROUTERS:
            raise ValueError(f"router must be one of {', '.join(ROUTERS)}")
        if router in ("conversation", "ignores_id") and not release.has_conversation_router:
            raise ValueError("this release has no conversation router")
        self.release = release
        self.args = TorchLlmArgs(
            tensor_parallel_size=dp_size,
            enable_attention_dp=dp_size > 1,
            attention_dp_config=_attention_dp_config(release, router, max_sessions, config_as_dict),
            kv_cache_config=_kv_cache_config(release, per_conversation_reuse),
            max_batch_size=max_active,
        )
        self.calls: deque[EngineCall] = deque(maxlen=100_000)
        self._ids = itertools.count(1)
        self._token_interval_s = token_interval_s
        self._on_end = on_end

        def build_router(match: Callable[[int, Sequence[int]], int]) -> AdpRouter:
            if router == "conversation":
                return ConversationRouter(max_sessions, records_first_rank)
            return KvCacheAwareRouter(match) if router == "kv_cache_aware" else DefaultRouter()

        self._scheduler = Scheduler(
            dp_size, max_active, self.args.kv_cache_config.enable_block_reuse, build_router
        )

    def generate_async(self, inputs: Sequence[int], **kwargs: Any) -> GenerationResult:
        """Enqueue one request; synchronous, as in the real engine.

        Args:
            inputs: Token ids of the prompt.
            **kwargs: The keywords that this release has.

        Raises:
            TypeError: A keyword or the class of a parameter is not this release's, or a generation
                request lacks what the context phase hands over.
            EngineDeadError: The engine died before.
        """
        self._check(kwargs)
        call = EngineCall(
            request_id=next(self._ids),
            token_ids=inputs,
            kwargs=kwargs,
            conversation_id=_conversation_id(kwargs),
        )
        self._scheduler.enqueue(call)
        self.calls.append(call)
        return GenerationResult(self.release, self._scheduler, call, self._token_interval_s, self._on_end)

    async def get_kv_cache_events_async(self, timeout: float | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the KV-cache events since the last call, without waiting for more.

        Args:
            timeout: The real engine waits so many seconds; unused.
        """
        del timeout
        events = self._scheduler.kv_events
        while events:
            yield events.popleft()

    def _check(self, kwargs: dict[str, Any]) -> None:
        for keyword in kwargs:
            if keyword not in self.release.keywords:
                raise TypeError(f"generate_async() got an unexpected keyword argument '{keyword}'")
        for keyword, expected in (
            ("disaggregated_params", self.release.disaggregated_params),
            ("scheduling_params", self.release.scheduling_params),
            ("conversation_params", self.release.conversation_params),
        ):
            value = kwargs.get(keyword)
            if value is not None and type(value) is not expected:
                raise TypeError(f"{keyword} is not of this release's class")
        params = kwargs.get("disaggregated_params")
        if params is not None and params.request_type == "generation_only":
            has_id = params.ctx_request_id is not None or params.disagg_request_id is not None
            if params.first_gen_tokens is None or not has_id:
                raise TypeError("a generation request needs the context phase's request id and first tokens")


def _conversation_id(kwargs: dict[str, Any]) -> str | None:
    params = kwargs.get("conversation_params")
    holder = kwargs.get("disaggregated_params") if params is None else params
    return getattr(holder, "conversation_id", None) or None


def _attention_dp_config(release: Release, router: str, max_sessions: int, as_dict: bool) -> Any:
    fields: dict[str, Any] = {}
    if router == "kv_cache_aware":
        fields = {"enable_kv_cache_aware_routing": True}
    elif router != "default":
        fields = {
            "kv_cache_routing_conversation_affinity": True,
            "kv_cache_routing_max_sessions": max_sessions,
        }
    if not fields:
        return None
    return fields if as_dict else release.attention_dp_config(**fields)


def _kv_cache_config(release: Release, per_conversation: bool) -> KvCacheConfig:
    if not release.has_block_reuse_policy:
        if per_conversation:
            raise ValueError("this release has no block reuse policy")
        return KvCacheConfig()
    policy = "per_conversation" if per_conversation else "all_reusable"
    return BlockReuseKvCacheConfig(block_reuse_config=BlockReuseConfig(policy=policy))
