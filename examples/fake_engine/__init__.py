"""A fake of the TensorRT-LLM engine: as strict about its parameters, and placing as its routers place.

It runs no model. It refuses what the real engine refuses and dies of what the real engine dies of, so a
request that passes it is well formed. `Release` describes the kinds of releases; `install` makes
one importable as `tensorrt_llm`; `FakeLLM` takes requests and records them.
"""

from examples.fake_engine.engine import FakeLLM
from examples.fake_engine.release import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    RANK_ONLY_PRIORITY,
    RELEASES,
    SUBAGENT_AFFINITY,
    Release,
    install,
)
from examples.fake_engine.result import CompletionOutput, GenerationResult, RequestOutput
from examples.fake_engine.scheduler import EngineCall, EngineDeadError

__all__ = [
    "CONVERSATION_PARAMS",
    "DISAGGREGATED_PARAMS",
    "RANK_ONLY",
    "RANK_ONLY_PRIORITY",
    "RELEASES",
    "SUBAGENT_AFFINITY",
    "CompletionOutput",
    "EngineCall",
    "EngineDeadError",
    "FakeLLM",
    "GenerationResult",
    "Release",
    "RequestOutput",
    "install",
]
