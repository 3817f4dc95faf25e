"""The deployments that the tests run: prefill and decode on engines of four attention-DP ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.model_folder import MODEL
from tests.e2e.stack import Stack
from tests.e2e.traffic import await_ready

PHASES = ("prefill", "decode")
BLOCK_SIZE = 8
"""Tokens per KV block of the fake engine, see its prefix cache."""
PIN_CONVERSATIONS = {"kv_cache_routing_conversation_affinity": True}


def start_dynamo_handlers(
    stack: Stack,
    *arguments: str,
    release: str,
    script: str = "examples/dynamo_trtllm.py",
    adp_config: Mapping[str, object] = PIN_CONVERSATIONS,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    **options: Any,
) -> None:
    """Starts Dynamo's own workers behind its kv router, and waits for them.

    Args:
        stack: Where.
        *arguments: Further arguments of the workers.
        release: The fake engine's.
        script: Starts a worker.
        adp_config: The engines' `attention_dp_config`.
        environments: Added to the environment of each phase's worker.
        **options: See `Stack.start_worker`.
    """
    stack.start_frontend("--router-mode", "kv")
    for mode in PHASES:
        stack.start_worker(
            mode,
            script,
            *trtllm_arguments(stack.folder, mode, adp_config),
            *arguments,
            release=release,
            environment=(environments or {}).get(mode),
            **options,
        )
    await_ready(stack)


def trtllm_arguments(folder: Path, mode: str, adp_config: Mapping[str, object]) -> list[str]:
    """Returns arguments of Dynamo's own TensorRT-LLM worker for an engine of four attention-DP ranks."""
    path = folder / f"{mode}.engine.json"
    path.write_text(json.dumps({"attention_dp_config": dict(adp_config)} if adp_config else {}))
    return [
        "--model-path",
        str(folder / "model"),
        "--served-model-name",
        MODEL,
        "--disaggregation-mode",
        mode,
        "--tensor-parallel-size",
        "4",
        "--enable-attention-dp",
        "--extra-engine-args",
        str(path),
        "--kv-block-size",
        str(BLOCK_SIZE),
        "--max-seq-len",
        "8192",
    ]


def own_worker_arguments(folder: Path, role: str, adp_config: Mapping[str, object]) -> list[str]:
    """Returns arguments of `examples/own_worker.py` for an engine of four attention-DP ranks."""
    engine_args: dict[str, object] = {"tensor_parallel_size": 4, "enable_attention_dp": True}
    if adp_config:
        engine_args["attention_dp_config"] = dict(adp_config)
    return [
        *(("--role", role) if role else ()),
        "--model-path",
        str(folder / "model"),
        "--model-name",
        MODEL,
        "--engine-args",
        json.dumps(engine_args),
        "--block-size",
        str(BLOCK_SIZE),
    ]
