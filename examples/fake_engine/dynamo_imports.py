"""What Dynamo's TensorRT-LLM workers import besides the classes of `params`, so that they run without a GPU.

A name that they use is a small class with the fields and checks of the real one. A name that they only
import, for multimodal input or diffusion, is a class that can't be instantiated. Any other name is an
ImportError. Importing this needs pydantic, which Dynamo brings.
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pydantic

from examples.fake_engine.release import Release

# Modules and the names that are imported from them and not used with text.
_UNUSED = {
    "nixl": (),
    "nixl._api": ("nixl_agent", "nixl_agent_config"),
    "PIL": ("Image",),
    "PIL.Image": ("Image",),
    "safetensors": (),
    "safetensors.torch": ("load", "load_file", "save"),
    "tensorrt_llm": ("MultimodalEncoder",),
    "tensorrt_llm._torch": (),
    "tensorrt_llm._torch.shared_tensor": ("SharedTensorContainer",),
    "tensorrt_llm.executor": (),
    "tensorrt_llm.executor.result": ("GenerationResult",),
    "tensorrt_llm.inputs": ("create_input_processor", "default_multimodal_input_loader"),
    "tensorrt_llm.inputs.multimodal_data": ("VideoData",),
    "tensorrt_llm.inputs.utils": ("async_load_video",),
    "tensorrt_llm.llmapi.llm": ("BaseLLM",),
    "tensorrt_llm.metrics": ("MetricsCollector",),
    "torch": ("Tensor", "dtype", "device", "LongTensor"),
    "torch.cuda": (),
    "transformers": ("AutoConfig", "PretrainedConfig", "PreTrainedTokenizerBase", "AutoTokenizer"),
}


class _StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class KvCacheConfig(_StrictModel):
    """The fields that Dynamo's worker sets."""

    free_gpu_memory_fraction: float | None = None
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    event_buffer_max_size: int = 0


class DynamicBatchConfig(_StrictModel):
    """As in `tensorrt_llm/llmapi/llm_args.py`."""

    enable_batch_size_tuning: bool
    enable_max_num_tokens_tuning: bool
    dynamic_batch_moving_average_window: int


class CapacitySchedulerPolicy(str, enum.Enum):
    """The policy that Dynamo's worker sets."""

    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"


class SchedulerConfig(_StrictModel):
    """The fields that Dynamo's worker sets."""

    capacity_scheduler_policy: CapacitySchedulerPolicy
    dynamic_batch_config: DynamicBatchConfig


class BuildConfig(_StrictModel):
    """Dynamo's worker reads its defaults off it."""

    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_beam_width: int = 1
    max_seq_len: int | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The fields of `tensorrt_llm/sampling_params.py` that Dynamo's handlers set."""

    n: int = 1
    best_of: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    use_beam_search: bool = False
    include_stop_str_in_output: bool = False
    guided_decoding: Any = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    logits_processor: Any = None
    return_perf_metrics: bool = False


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """As in `tensorrt_llm/sampling_params.py`."""

    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True)
class Logprob:
    """As in `tensorrt_llm/executor/result.py`."""

    logprob: float
    rank: int | None = None


class RequestError(RuntimeError):
    """As in `tensorrt_llm/executor/utils.py`."""


class LogitsProcessor:
    """A base class of Dynamo's adapter."""


def install(release: Release) -> None:
    """Makes everything importable, beside what `release.install` has made importable.

    Args:
        release: The release of `tensorrt_llm` to fake.
    """
    for module, names in _UNUSED.items():
        _provide(module, {name: _unusable(f"{module}.{name}") for name in names})
    _provide("tensorrt_llm", {"SamplingParams": SamplingParams})
    _provide("torch.cuda", {"device_count": lambda: 8})
    _provide("tensorrt_llm.executor.request", {"DEFAULT_REQUEST_PRIORITY": 0.5})
    _provide("tensorrt_llm.executor.result", {"Logprob": Logprob})
    _provide("tensorrt_llm.executor.utils", {"RequestError": RequestError})
    classes = (KvCacheConfig, DynamicBatchConfig, CapacitySchedulerPolicy, SchedulerConfig, BuildConfig)
    _provide("tensorrt_llm.llmapi", {cls.__name__: cls for cls in classes})
    _provide("tensorrt_llm.llmapi.llm", {"SamplingParams": SamplingParams})
    _provide(
        "tensorrt_llm.llmapi.llm_args",
        {
            "TOKENIZER_ALIASES": {},
            "KvCacheConnectorConfig": _unusable("KvCacheConnectorConfig"),
            "LoadFormat": _unusable("LoadFormat"),
            "AttentionDpConfig": release.attention_dp_config,
        },
    )
    _provide("tensorrt_llm.llmapi.llm_utils", {"update_llm_args_with_extra_options": _merge_yaml})
    _provide("tensorrt_llm.llmapi.tokenizer", {"tokenizer_factory": lambda *_, **__: None})
    _provide("tensorrt_llm.llmapi.disagg_utils", {"get_global_disagg_request_id": _make_disagg_ids(release)})
    _provide(
        "tensorrt_llm.sampling_params",
        {
            "GuidedDecodingParams": GuidedDecodingParams,
            "LogitsProcessor": LogitsProcessor,
            "SamplingParams": SamplingParams,
        },
    )


def _provide(module: str, names: dict[str, Any]) -> None:
    parent, _, child = module.rpartition(".")
    if module not in sys.modules:
        made = ModuleType(module)
        made.__path__ = []
        sys.modules[module] = made
        if parent:
            setattr(sys.modules[parent], child, made)
    vars(sys.modules[module]).update(names)


def _unusable(name: str) -> type[Any]:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError(f"the fake engine has no {name}")

    return type(name.rpartition(".")[2], (), {"__init__": refuse})


def _merge_yaml(arguments: dict[str, Any], path: str) -> dict[str, Any]:
    import yaml

    with open(path) as file:
        return {**arguments, **(yaml.safe_load(file) or {})}


def _make_disagg_ids(release: Release) -> Any:
    numbers: Iterable[int] = itertools.count(1)
    iterator = iter(numbers)

    def of_machine(machine_id: int) -> int:
        return machine_id << 32 | next(iterator)

    def of_process(node_id: int, process_id: int) -> int:
        return node_id << 40 | process_id << 34 | next(iterator)

    # The signature changed with 1.3.0rc22; Dynamo's handlers detect the release by it.
    return of_machine if release.conversation_params is None else of_process
