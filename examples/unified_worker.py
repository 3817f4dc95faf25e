"""An aggregated TensorRT-LLM worker on Dynamo's unified backend (`dynamo.common.backend`, 1.6)."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncGenerator
from typing import Any

from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from tensorrt_llm import LLM, SamplingParams

from worker_client import EngineProfile, Phase, RoutingHintClient


class UnifiedEngine(LLMEngine):
    """Serves one engine; Dynamo's worker owns its life."""

    def __init__(
        self, model_path: str, model_name: str, engine_args: dict[str, Any], block_size: int
    ) -> None:
        self.model_path, self.model_name = model_path, model_name
        self.engine_args, self.block_size = engine_args, block_size
        self.llm: LLM | None = None
        self.running: dict[str, Any] = {}
        self.hints = RoutingHintClient.from_env()
        self.profile = EngineProfile.lazy(lambda: self.llm)

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[UnifiedEngine, WorkerConfig]:
        """Reads the command line."""
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--model-name", required=True)
        parser.add_argument("--engine-args", type=json.loads, default={}, help="of tensorrt_llm.LLM, as JSON")
        parser.add_argument("--block-size", type=int, default=32)
        args = parser.parse_args(argv)
        engine = cls(args.model_path, args.model_name, args.engine_args, args.block_size)
        config = WorkerConfig(
            namespace="dynamo",
            model_name=args.model_path,
            served_model_name=args.model_name,
            discovery_backend="file",
            event_plane="zmq",
            enable_kv_routing=False,
        )
        return engine, config

    async def start(self, worker_id: int) -> EngineConfig:
        """Builds the engine; requests come from now on."""
        self.llm = LLM(model=self.model_path, **self.engine_args)
        return EngineConfig(
            model=self.model_path,
            served_model_name=self.model_name,
            llm=LlmRegistration(
                context_length=8192,
                kv_cache_block_size=self.block_size,
                total_kv_blocks=4096,
                max_num_seqs=64,
                max_num_batched_tokens=8192,
                data_parallel_size=self.llm.args.tensor_parallel_size,
            ),
        )

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """Runs one request; yields chunks of what Dynamo expects."""
        sampling = SamplingParams(max_tokens=request["stop_conditions"].get("max_tokens") or 64)
        async with self.hints.plan(request, context, phase=Phase.AGGREGATED, engine=self.profile) as plan:
            result = self.llm.generate_async(
                inputs=request["token_ids"],
                sampling_params=sampling,
                streaming=True,
                **plan.engine_kwargs(),
            )
            self.running[context.id()] = result
            try:
                n_sent = 0
                async for output in result:
                    plan.observe(output)
                    completion = output.outputs[0]
                    chunk = {"token_ids": completion.token_ids[n_sent:], "index": 0}
                    n_sent = len(completion.token_ids)
                    if completion.finish_reason:
                        chunk["finish_reason"] = completion.finish_reason
                        chunk["completion_usage"] = {
                            "prompt_tokens": len(request["token_ids"]),
                            "completion_tokens": n_sent,
                            "total_tokens": len(request["token_ids"]) + n_sent,
                        }
                    yield chunk
            finally:
                del self.running[context.id()]

    async def abort(self, context: Any) -> None:
        """Ends a request that its caller cancelled."""
        if result := self.running.get(context.id()):
            result.abort()

    async def cleanup(self) -> None:
        """Sends the client's last reports and ends the engine."""
        await self.hints.close()
        if self.llm is not None:
            self.llm.shutdown()


if __name__ == "__main__":
    run(UnifiedEngine)
