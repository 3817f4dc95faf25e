"""What the client knows of the engine in its process, read from what is importable and from its config."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from routing_hints.vocabulary import AdpRouter, EngineDialect, RankSource
from worker_client._dialect import detect_dialect
from worker_client._engine_types import (
    AFFINITY_FIELD,
    KV_AWARE_FIELD,
    EngineTypes,
    list_field_names,
    read_count,
    read_field,
    read_installed_version,
)

_NO_ARGS = object()


class EngineSource(Protocol):
    """Gives the profile of the engine behind a request."""

    def current(self) -> EngineProfile | None:
        """Returns the profile, or None while the engine does not exist yet. Never raises."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine: how it takes a conversation id, and how it places requests.

    Attributes:
        dialect: how a conversation id can be attached.
        adp_router: the engine's attention-DP router.
        rank_source: who chooses the rank, where the environment does not say.
        dp_size: number of attention-DP ranks, 0 if unknown.
        records_first_rank: whether its conversation router records an explicit first rank
            (NVIDIA/TensorRT-LLM#16815); no release states so of itself, so the operator does.
        subagent_affinity: whether `SchedulingParams` has `subagent_affinity_id`. wants_conversation_id:
            whether its KV block-reuse policy is per conversation. version: the installed release, for logs.
            instance_id: names this engine start. By default a nonce; processes that share one engine pass the
            same.
        max_active_requests: requests that one attention-DP rank runs at a time, 0 if unknown.
        types: the classes to build parameters from.
    """

    dialect: EngineDialect = EngineDialect.RANK_ONLY
    adp_router: AdpRouter = AdpRouter.UNKNOWN
    rank_source: RankSource = RankSource.UNSPECIFIED
    dp_size: int = 0
    records_first_rank: bool = False
    subagent_affinity: bool = False
    wants_conversation_id: bool = False
    version: str = ""
    instance_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    max_active_requests: int = 0
    types: EngineTypes = field(default_factory=EngineTypes.find)

    def current(self) -> EngineProfile:
        """Returns itself."""
        return self

    @classmethod
    def detect(
        cls, llm: object, *, records_first_rank: bool = False, instance_id: str | None = None
    ) -> EngineProfile:
        """Returns the profile of a TensorRT-LLM `LLM` object, reading `llm.args`. Never raises.

        Config objects may be dataclasses, pydantic models or mappings; only a real True counts. The
        conversation router wins over the KV-cache-aware one where both are configured, and the latter needs
        block reuse, as in the engine's own choice. Source: `ADPRouter.create` and `AttentionDpConfig` of
        NVIDIA/TensorRT-LLM.

        Args:
            llm: the engine.
            records_first_rank: whether its conversation router records an explicit first rank.
            instance_id: names this engine start where several processes share the engine; by default a nonce.
        """
        types = EngineTypes.find()
        args = read_field(llm, "args")
        config = read_field(args, "attention_dp_config")
        dialect = detect_dialect(types, llm, config)
        reuse = read_field(read_field(args, "kv_cache_config"), "block_reuse_config")
        return cls(
            dialect=dialect,
            adp_router=_read_router(args, config),
            dp_size=_read_dp_size(args),
            records_first_rank=records_first_rank,
            subagent_affinity="subagent_affinity_id" in list_field_names(types.scheduling_params),
            wants_conversation_id=read_field(reuse, "policy") == "per_conversation"
            and dialect.carries_conversation_id,
            version=read_installed_version(),
            instance_id=instance_id or uuid.uuid4().hex,
            max_active_requests=_read_max_active_requests(args),
            types=types,
        )

    @staticmethod
    def lazy(
        get_llm: Callable[[], object],
        *,
        records_first_rank: bool = False,
        get_instance_id: Callable[[], str] | None = None,
    ) -> EngineSource:
        """Returns a profile that is detected once `get_llm` returns an engine.

        Until then, that is while it returns None or raises, requests are forwarded with reason
        `engine-not-ready`. Another object from `get_llm` is another engine start, with an empty KV cache.

        Args:
            get_llm: returns the engine.
            records_first_rank: see `detect`.
            get_instance_id: names the engine start, see `detect`; called once per engine.
        """
        return _LazyProfile(get_llm, records_first_rank, get_instance_id)


class _LazyProfile:
    def __init__(
        self,
        get_llm: Callable[[], object],
        records_first_rank: bool,
        get_instance_id: Callable[[], str] | None,
    ) -> None:
        self._get_llm = get_llm
        self._records_first_rank = records_first_rank
        self._get_instance_id = get_instance_id
        self._llm: object = None
        self._profile: EngineProfile | None = None

    def current(self) -> EngineProfile | None:
        try:
            llm = self._get_llm()
            if llm is not None and llm is not self._llm:
                self._detect(llm)
            return self._profile if llm is not None else None
        except Exception:  # noqa: BLE001  a half-built worker may raise anything here
            return None

    def _detect(self, llm: object) -> None:
        self._profile = None
        # An engine whose `args` is still None is being built; one without `args` stays unknown.
        if getattr(llm, "args", _NO_ARGS) is None:
            return
        self._profile = EngineProfile.detect(
            llm,
            records_first_rank=self._records_first_rank,
            instance_id=self._get_instance_id() if self._get_instance_id is not None else None,
        )
        self._llm = llm


def _read_router(args: object, config: object) -> AdpRouter:
    if args is None:
        return AdpRouter.UNKNOWN
    backend = read_field(args, "backend")
    if read_field(args, "enable_attention_dp") is False or backend not in (None, "pytorch"):
        return AdpRouter.DEFAULT
    if read_field(args, "enable_attention_dp") is not True:
        return AdpRouter.UNKNOWN
    if read_field(config, AFFINITY_FIELD) is True:
        return AdpRouter.CONVERSATION
    if read_field(config, KV_AWARE_FIELD) is True:
        reuse_off = read_field(read_field(args, "kv_cache_config"), "enable_block_reuse") is False
        return AdpRouter.DEFAULT if reuse_off else AdpRouter.KV_CACHE_AWARE
    return AdpRouter.DEFAULT


def _read_dp_size(args: object) -> int:
    """Returns the number of attention-DP ranks: the tensor-parallel size where attention DP is on."""
    attention_dp = read_field(args, "enable_attention_dp")
    if attention_dp is False:
        return 1
    return read_count(args, "tensor_parallel_size") if attention_dp is True else 0


def _read_max_active_requests(args: object) -> int:
    """Returns the executor's hard cap for each rank; 0 if unknown.

    Source: `max_num_active_requests` of NVIDIA/TensorRT-LLM is the pipeline-parallel size times
        `max_batch_size`.
    """
    return max(read_count(args, "pipeline_parallel_size"), 1) * read_count(args, "max_batch_size")
