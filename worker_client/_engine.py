"""What the client knows of the engine in its process, read from what is importable and from its config."""

from __future__ import annotations

import importlib
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from worker_client._model import AdpRouter, EngineDialect, RankSource

AFFINITY_FIELD = "kv_cache_routing_conversation_affinity"
KV_AWARE_FIELD = "enable_kv_cache_aware_routing"
_NO_ARGS = object()


@dataclass(frozen=True, slots=True)
class EngineTypes:
    """The installed TensorRT-LLM's classes that engine parameters are built from; None where it lacks one."""

    scheduling_params: type[Any] | None = None
    conversation_params: type[Any] | None = None
    disaggregated_params: type[Any] | None = None
    attention_dp_config: type[Any] | None = None

    @classmethod
    def find(cls) -> EngineTypes:
        """Returns what the installed release has; nothing where TensorRT-LLM can't be imported."""
        return cls(
            scheduling_params=_find("tensorrt_llm.scheduling_params", "SchedulingParams"),
            conversation_params=_find("tensorrt_llm.llmapi", "ConversationParams"),
            disaggregated_params=_find("tensorrt_llm.llmapi", "DisaggregatedParams"),
            attention_dp_config=_find("tensorrt_llm.llmapi", "AttentionDpConfig"),
        )


class EngineSource(Protocol):
    """Gives the profile of the engine behind a request."""

    def current(self) -> EngineProfile | None:
        """Returns the profile, or None while the engine does not exist yet. Never raises."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine: how it can be told a conversation, and how it places requests.

    Attributes:
        dialect: how a conversation id can be attached.
        adp_router: the engine's attention-DP router.
        rank_source: who chooses the rank, where the environment does not say.
        dp_size: number of attention-DP ranks, 0 if unknown.
        records_first_rank: whether its conversation router records an explicit first rank
            (NVIDIA/TensorRT-LLM#16815); no release says so of itself, so the operator does.
        subagent_affinity: whether `SchedulingParams` has `subagent_affinity_id`.
        wants_conversation_id: whether its KV block-reuse policy is per conversation.
        version: the installed release, for people.
        instance_id: a nonce of this engine start.
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
    def detect(cls, llm: object, *, records_first_rank: bool = False) -> EngineProfile:
        """Returns the profile of a TensorRT-LLM `LLM` object, reading `llm.args`. Never raises.

        Config objects may be dataclasses, pydantic models or mappings; only a real True counts. The
        conversation router wins over the KV-cache-aware one where both are configured, and the latter needs
        block reuse, as in the engine's own choice. Source: `ADPRouter.create` and `AttentionDpConfig` of
        NVIDIA/TensorRT-LLM.
        """
        types = EngineTypes.find()
        args = read_field(llm, "args")
        config = read_field(args, "attention_dp_config")
        dialect = _dialect(types, llm, config)
        reuse = read_field(read_field(args, "kv_cache_config"), "block_reuse_config")
        return cls(
            dialect=dialect,
            adp_router=_adp_router(args, config),
            dp_size=_dp_size(args),
            records_first_rank=records_first_rank,
            subagent_affinity="subagent_affinity_id" in field_names(types.scheduling_params),
            wants_conversation_id=read_field(reuse, "policy") == "per_conversation"
            and dialect is not EngineDialect.RANK_ONLY,
            version=_installed_version(),
            # The executor's hard cap for each rank (`max_num_active_requests` of NVIDIA/TensorRT-LLM).
            max_active_requests=_read_count(args, "max_batch_size"),
            types=types,
        )

    @staticmethod
    def lazy(get_llm: Callable[[], object], *, records_first_rank: bool = False) -> EngineSource:
        """Returns a profile that is detected once `get_llm` first returns an engine.

        Until then, that is while it returns None or raises, requests are forwarded with reason
        `engine-not-ready`.
        """
        return _LazyProfile(get_llm, records_first_rank)


class _LazyProfile:
    def __init__(self, get_llm: Callable[[], object], records_first_rank: bool) -> None:
        self._get_llm = get_llm
        self._records_first_rank = records_first_rank
        self._profile: EngineProfile | None = None

    def current(self) -> EngineProfile | None:
        if self._profile is None:
            try:
                llm = self._get_llm()
                # An engine whose `args` is still None is being built; one without `args` stays unknown.
                is_built = llm is not None and getattr(llm, "args", _NO_ARGS) is not None
            except Exception:  # noqa: BLE001  a half-built worker may raise anything here
                return None
            if is_built:
                self._profile = EngineProfile.detect(llm, records_first_rank=self._records_first_rank)
        return self._profile


def with_gate(profile: EngineProfile, adp_router: AdpRouter, rank_source: RankSource) -> EngineProfile:
    """Returns `profile` as the gate wants it seen, keeping its instance."""
    return replace(profile, adp_router=adp_router, rank_source=rank_source)


def _dialect(types: EngineTypes, llm: object, config: object) -> EngineDialect:
    if types.conversation_params is not None and _takes_keyword(llm, "conversation_params"):
        return EngineDialect.CONVERSATION_PARAMS
    # The field alone does not tell: the release's router must read it, and that one has a setting.
    config_fields = field_names(types.attention_dp_config) | field_names(config)
    if "conversation_id" in field_names(types.disaggregated_params) and AFFINITY_FIELD in config_fields:
        return EngineDialect.DISAGGREGATED_PARAMS
    return EngineDialect.RANK_ONLY


def _takes_keyword(llm: object, name: str) -> bool:
    """Returns whether `llm.generate_async` takes a keyword; also true where its signature can't be read."""
    try:
        parameters = inspect.signature(llm.generate_async).parameters  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _adp_router(args: object, config: object) -> AdpRouter:
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


def _dp_size(args: object) -> int:
    """Returns the number of attention-DP ranks: the tensor-parallel size where attention DP is on."""
    attention_dp = read_field(args, "enable_attention_dp")
    if attention_dp is False:
        return 1
    return _read_count(args, "tensor_parallel_size") if attention_dp is True else 0


def _read_count(args: object, name: str) -> int:
    """Returns a field that counts something, 0 where it is absent or no positive integer."""
    count = read_field(args, name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def read_field(holder: object, name: str) -> Any:
    """Returns a field of a config object or mapping, None where there is none or reading it fails."""
    if holder is None:
        return None
    try:
        return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a config property may raise anything; unreadable is unknown
        return None


def field_names(holder: object) -> frozenset[str]:
    """Returns the field names of a dataclass, a pydantic model (class or object) or a mapping."""
    if isinstance(holder, Mapping):
        return frozenset(key for key in holder if isinstance(key, str))
    model = holder if isinstance(holder, type) else type(holder)
    for fields in (
        read_field(holder, "__dataclass_fields__"),
        read_field(model, "model_fields"),
        read_field(holder, "__dict__"),
    ):
        if fields and isinstance(fields, Mapping):
            return frozenset(fields)
    return frozenset()


def _find(module: str, name: str) -> type[Any] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception:  # noqa: BLE001  importing an engine can fail in any way, not only by ImportError
        return None
    return found if isinstance(found, type) else None


def _installed_version() -> str:
    try:
        return str(getattr(importlib.import_module("tensorrt_llm"), "__version__", ""))
    except Exception:  # noqa: BLE001  see _find
        return ""
