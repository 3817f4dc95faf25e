"""The parameter classes of TensorRT-LLM, with the shapes that each release really has.

The real ones are dataclasses with slots and keyword-only fields, so an unknown attribute is an
AttributeError and an unknown constructor key a TypeError; so are these. Field lists and defaults are
those of `tensorrt_llm/disaggregated_params.py`, `tensorrt_llm/scheduling_params.py` and
`AttentionDpConfig` in `tensorrt_llm/llmapi/llm_args.py` of the public TensorRT-LLM repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REQUEST_TYPES = ("context_only", "generation_only", "context_and_generation")


@dataclass(slots=True, kw_only=True)
class DisaggregatedParams:
    """What one phase of disaggregated serving hands to the other; it holds no conversation.

    `ctx_dp_rank` is set by the context engine: the attention-DP rank that computed the prompt.

    Raises:
        ValueError: The request type is unknown.
        AssertionError: Multimodal hashes do not fit the embedding handles.
    """

    request_type: str | None = None
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: list[Any] | None = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: int | None = None
    multimodal_embedding_handles: list[dict[str, Any]] | None = None
    multimodal_hashes: list[list[int]] | None = None
    mrope_position_ids_handle: dict[str, Any] | None = None
    mrope_position_deltas_handle: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.request_type is not None:
            self.request_type = self.request_type.lower()
            if self.request_type not in REQUEST_TYPES:
                raise ValueError(f"unknown request_type, must be one of {', '.join(REQUEST_TYPES)}")
        if self.multimodal_embedding_handles is not None and self.multimodal_hashes is not None:
            if len(self.multimodal_hashes) != len(self.multimodal_embedding_handles):
                raise AssertionError("one multimodal hash per embedding handle")
            if not all(len(h) == 8 and all(type(x) is int for x in h) for h in self.multimodal_hashes):
                raise AssertionError("a multimodal hash is a list of 8 integers")


@dataclass(slots=True, kw_only=True)
class ConversationDisaggregatedParams(DisaggregatedParams):
    """`DisaggregatedParams` of the releases whose conversation router reads the id here.

    That router takes an empty id as absent (`ConversationAwareADPRouter._conversation_id`).
    """

    conversation_id: str | None = None


@dataclass(slots=True, kw_only=True)
class ConversationParams:
    """The conversation of a request, in releases after 1.3.0rc20 (NVIDIA/TensorRT-LLM#15452).

    Raises:
        ValueError: The id is None or blank.
    """

    conversation_id: str

    def __post_init__(self) -> None:
        text = "" if self.conversation_id is None else str(self.conversation_id).strip()
        if not text:
            raise ValueError("conversation_id must not be blank")
        self.conversation_id = text


@dataclass(slots=True, kw_only=True)
class UnsetRelaxSchedulingParams:
    """`SchedulingParams` before NVIDIA/TensorRT-LLM#14276: an unset relax is None.

    The routers sort a batch by that field, and None does not compare (NVIDIA/TensorRT-LLM#14267).
    """

    attention_dp_rank: int | None = None
    attention_dp_relax: bool | None = None


@dataclass(slots=True, kw_only=True)
class SchedulingParams:
    """`SchedulingParams` since NVIDIA/TensorRT-LLM#14276: relax defaults to True."""

    attention_dp_rank: int | None = None
    attention_dp_relax: bool = True
    agent_hierarchy: list[tuple[str, int]] | None = None


@dataclass(slots=True, kw_only=True)
class SubagentSchedulingParams(SchedulingParams):
    """With the affinity key of NVIDIA/TensorRT-LLM#18684: place a new child where its parent is."""

    subagent_affinity_id: str | None = None


@dataclass(slots=True, kw_only=True)
class AttentionDpConfig:
    """`AttentionDpConfig` before the conversation router; the real one forbids unknown keys too."""

    enable_balance: bool = False
    timeout_iters: int = 50
    batching_wait_iters: int = 10
    enable_kv_cache_aware_routing: bool = False


@dataclass(slots=True, kw_only=True)
class ConversationAttentionDpConfig(AttentionDpConfig):
    """`AttentionDpConfig` with the conversation router (NVIDIA/TensorRT-LLM#14983).

    `kv_cache_routing_conversation_affinity` wins over `enable_kv_cache_aware_routing`.
    """

    kv_cache_routing_conversation_affinity: bool = False
    kv_cache_routing_max_sessions: int = 65536


@dataclass(slots=True, kw_only=True)
class KvCacheConfig:
    """The part of `KvCacheConfig` that decides about prefix reuse."""

    enable_block_reuse: bool = True


@dataclass(slots=True, kw_only=True)
class BlockReuseConfig:
    """Which KV blocks are kept; `per_conversation` is keyed by the conversation id.

    The policy is NVIDIA/TensorRT-LLM#16115.

    Raises:
        ValueError: The policy is unknown.
    """

    policy: str = "all_reusable"
    max_num_turns: int = 1

    def __post_init__(self) -> None:
        if self.policy not in ("all_reusable", "per_request", "per_conversation"):
            raise ValueError("unknown block reuse policy")


@dataclass(slots=True, kw_only=True)
class BlockReuseKvCacheConfig(KvCacheConfig):
    """`KvCacheConfig` of the releases that have block reuse policies."""

    block_reuse_config: BlockReuseConfig


@dataclass(slots=True, kw_only=True)
class TorchLlmArgs:
    """The part of `LLM.args` that says how attention data parallelism is set up.

    Attributes:
        tensor_parallel_size: With attention DP on also the number of its ranks.
        attention_dp_config: The release's config object, or the mapping that a YAML file gave.
        max_batch_size: Hard cap of requests of each rank.
    """

    backend: str = "pytorch"
    tensor_parallel_size: int
    enable_attention_dp: bool
    attention_dp_config: AttentionDpConfig | dict[str, Any] | None
    kv_cache_config: KvCacheConfig
    max_batch_size: int
