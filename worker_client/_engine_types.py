"""The installed TensorRT-LLM's classes, and reading its config objects, of which nothing can be assumed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AFFINITY_FIELD = "kv_cache_routing_conversation_affinity"
KV_AWARE_FIELD = "enable_kv_cache_aware_routing"


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
            scheduling_params=_find_class("tensorrt_llm.scheduling_params", "SchedulingParams"),
            conversation_params=_find_class("tensorrt_llm.llmapi", "ConversationParams"),
            disaggregated_params=_find_class("tensorrt_llm.llmapi", "DisaggregatedParams"),
            attention_dp_config=_find_class("tensorrt_llm.llmapi", "AttentionDpConfig"),
        )


def read_installed_version() -> str:
    """Returns the version of the installed TensorRT-LLM; empty where it can't be imported."""
    try:
        return str(getattr(importlib.import_module("tensorrt_llm"), "__version__", ""))
    except Exception:  # noqa: BLE001  importing an engine can fail in any way, not only by ImportError
        return ""


def read_field(holder: object, name: str) -> Any:
    """Returns a field of a config object or mapping, None where there is none or reading it fails."""
    if holder is None:
        return None
    try:
        return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a config property may raise anything; unreadable is unknown
        return None


def read_count(holder: object, name: str) -> int:
    """Returns a field that counts something, 0 where it is absent or not a positive integer."""
    count = read_field(holder, name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def list_field_names(holder: object) -> frozenset[str]:
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


def _find_class(module: str, name: str) -> type[Any] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception:  # noqa: BLE001  see read_installed_version
        return None
    return found if isinstance(found, type) else None
