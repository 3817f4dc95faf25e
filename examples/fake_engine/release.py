"""Which classes and keywords each kind of TensorRT-LLM release has, and how to make one importable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from examples.fake_engine import params

# What Dynamo's handlers pass to every release (their `generate_async` call, 1.1.1 to 1.6.1).
_COMMON_KEYWORDS = frozenset(
    {
        "sampling_params",
        "disaggregated_params",
        "streaming",
        "trace_headers",
        "scheduling_params",
        "cache_salt",
        "lora_request",
        "kv_cache_retention_config",
    }
)


@dataclass(frozen=True, slots=True)
class Release:
    """One kind of TensorRT-LLM release, as far as a worker can detect it.

    Attributes:
        name: The dialect's name, lower case.
        version: The value of `tensorrt_llm.__version__`.
        conversation_params: None where the class does not exist.
        keywords: Everything that `generate_async` takes besides `inputs`.
    """

    name: str
    version: str
    disaggregated_params: type[Any]
    scheduling_params: type[Any]
    conversation_params: type[Any] | None
    attention_dp_config: type[Any]
    has_block_reuse_policy: bool
    keywords: frozenset[str]

    @property
    def has_conversation_router(self) -> bool:
        """Whether the engine can be configured to pin conversations."""
        return self.attention_dp_config is params.ConversationAttentionDpConfig


# Dynamo 1.1 pins this one.
RANK_ONLY = Release(
    name="rank_only",
    version="1.3.0rc11",
    disaggregated_params=params.DisaggregatedParams,
    scheduling_params=params.UnsetRelaxSchedulingParams,
    conversation_params=None,
    attention_dp_config=params.AttentionDpConfig,
    has_block_reuse_policy=False,
    keywords=_COMMON_KEYWORDS,
)

# Dynamo 1.2 pins this one; its handlers pass a priority.
RANK_ONLY_PRIORITY = replace(RANK_ONLY, version="1.3.0rc14", keywords=_COMMON_KEYWORDS | {"priority"})

# The design of ai-dynamo/dynamo#10517, built from a feature branch and never published.
DISAGGREGATED_PARAMS = Release(
    name="disaggregated_params",
    version="0.0.0+feature.branch",
    disaggregated_params=params.ConversationDisaggregatedParams,
    scheduling_params=params.UnsetRelaxSchedulingParams,
    conversation_params=None,
    attention_dp_config=params.ConversationAttentionDpConfig,
    has_block_reuse_policy=False,
    keywords=_COMMON_KEYWORDS | {"priority"},
)

# Dynamo 1.6.1 pins this one.
CONVERSATION_PARAMS = Release(
    name="conversation_params",
    version="1.3.0rc29",
    disaggregated_params=params.DisaggregatedParams,
    scheduling_params=params.SchedulingParams,
    conversation_params=params.ConversationParams,
    attention_dp_config=params.ConversationAttentionDpConfig,
    has_block_reuse_policy=True,
    keywords=_COMMON_KEYWORDS | {"priority", "conversation_params"},
)

# It is unknown which published release first has #18684.
SUBAGENT_AFFINITY = Release(
    name="conversation_params",
    version="0.0.0+subagent.affinity",
    disaggregated_params=params.DisaggregatedParams,
    scheduling_params=params.SubagentSchedulingParams,
    conversation_params=params.ConversationParams,
    attention_dp_config=params.ConversationAttentionDpConfig,
    has_block_reuse_policy=True,
    keywords=_COMMON_KEYWORDS | {"priority", "conversation_params"},
)

RELEASES = (RANK_ONLY, RANK_ONLY_PRIORITY, DISAGGREGATED_PARAMS, CONVERSATION_PARAMS, SUBAGENT_AFFINITY)

_MODULES = ("tensorrt_llm", "tensorrt_llm.llmapi", "tensorrt_llm.scheduling_params")


@contextmanager
def install(release: Release, *, llm_class: type[Any] | None = None) -> Iterator[None]:
    """Make `tensorrt_llm` importable as that release, and take it away again.

    Only `tensorrt_llm`, `tensorrt_llm.llmapi` and `tensorrt_llm.scheduling_params` exist, and in them
    only the classes of parameters and of `attention_dp_config` that the release has; any other import is
    an ImportError.

    Args:
        release: What to make importable.
        llm_class: What `tensorrt_llm.LLM` is; by default it does not exist.
    """
    saved = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
    root, llmapi, scheduling = (ModuleType(name) for name in _MODULES)
    root.__path__ = []
    vars(root).update(__version__=release.version, llmapi=llmapi, scheduling_params=scheduling)
    vars(llmapi).update(
        AttentionDpConfig=release.attention_dp_config, DisaggregatedParams=release.disaggregated_params
    )
    if llm_class is not None:
        vars(root).update(LLM=llm_class)
    if release.conversation_params is not None:
        vars(llmapi).update(ConversationParams=release.conversation_params)
    vars(scheduling).update(SchedulingParams=release.scheduling_params)
    sys.modules.update(zip(_MODULES, (root, llmapi, scheduling), strict=True))
    try:
        yield
    finally:
        for name in _MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(saved)
