"""A TensorRT-LLM worker of one's own for Dynamo 1.3 and newer, prefill, decode or aggregated.

`own_worker_before.py` is the same without this project.
"""

import argparse
import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi import DisaggregatedParams

from examples.kv_events import publish_kv_events
from worker_client import EngineProfile, Phase, RoutingHintClient

ROLES = {
    "PREFILL": (ModelType.Prefill, WorkerType.Prefill, [[WorkerType.Decode]]),
    "DECODE": (ModelType.Chat | ModelType.Completions, WorkerType.Decode, [[WorkerType.Prefill]]),
    "AGGREGATED": (ModelType.Chat | ModelType.Completions, WorkerType.Aggregated, []),
}


class Worker:
    """Serves one engine."""

    def __init__(self, llm: LLM, role: str) -> None:
        self.llm = llm
        self.role = role
        self.hints = RoutingHintClient.from_env()
        self.profile = EngineProfile.lazy(lambda: self.llm)

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        """Runs one request of Dynamo; yields chunks of what Dynamo expects."""
        params = self.make_disaggregated_params(request)
        sampling = SamplingParams(max_tokens=request["stop_conditions"].get("max_tokens") or 64)
        async with self.hints.plan(request, context, phase=Phase[self.role], engine=self.profile) as plan:
            result = self.llm.generate_async(
                inputs=request["token_ids"],
                sampling_params=sampling,
                streaming=self.role != "PREFILL",
                cache_salt=((request.get("extra_args") or {}).get("nvext") or {}).get("cache_salt"),
                **plan.engine_kwargs(disaggregated_params=params),
            )
            stopped = asyncio.ensure_future(context.async_killed_or_stopped())
            stopped.add_done_callback(lambda _: result.abort())
            try:
                n_sent = 0
                async for output in result:
                    plan.observe(output)
                    yield self.make_chunk(request, output, n_sent)
                    n_sent = len(output.outputs[0].token_ids)
            finally:
                stopped.cancel()

    def make_disaggregated_params(self, request: dict[str, Any]) -> DisaggregatedParams | None:
        """Returns what the engine needs for its phase."""
        if self.role == "PREFILL":
            return DisaggregatedParams(request_type="context_only")
        if not request.get("prefill_result"):
            return None
        fields = dict(request["prefill_result"]["disaggregated_params"])
        fields.pop("worker_id", None)
        fields["opaque_state"] = base64.b64decode(fields["opaque_state"])
        return DisaggregatedParams(**{**fields, "request_type": "generation_only"})

    def make_chunk(self, request: dict[str, Any], output: Any, n_sent: int) -> dict[str, Any]:
        """Returns the new tokens of an engine output; on prefill also what decode needs."""
        completion = output.outputs[0]
        chunk = {"token_ids": completion.token_ids[n_sent:], "index": 0}
        if completion.finish_reason:
            n_prompt, n_generated = len(request["token_ids"]), len(completion.token_ids)
            chunk["finish_reason"] = completion.finish_reason
            chunk["completion_usage"] = {
                "prompt_tokens": n_prompt,
                "completion_tokens": n_generated,
                "total_tokens": n_prompt + n_generated,
                "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
            }
        if self.role == "PREFILL":
            fields = dataclasses.asdict(completion.disaggregated_params)
            fields["opaque_state"] = base64.b64encode(fields["opaque_state"]).decode()
            chunk["disaggregated_params"] = fields
        return chunk


async def main() -> None:
    """Builds the engine, registers it with Dynamo and serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", type=str.upper, choices=ROLES, required=True)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--engine-args", type=json.loads, default={}, help="of tensorrt_llm.LLM, as JSON")
    parser.add_argument("--block-size", type=int, default=32)
    args = parser.parse_args()
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(f"dynamo.{'prefill' if args.role == 'PREFILL' else 'backend'}.generate")
    llm = LLM(model=args.model_path, **args.engine_args)
    dp_size = llm.args.tensor_parallel_size if llm.args.enable_attention_dp else 1
    config = ModelRuntimeConfig()
    config.context_length = 8192
    config.total_kv_blocks = 4096
    config.max_num_seqs = 64
    config.max_num_batched_tokens = 8192
    config.data_parallel_size = dp_size
    config.enable_local_indexer = args.role != "DECODE"
    model_type, worker_type, needs = ROLES[args.role]
    await register_model(
        ModelInput.Tokens,
        model_type,
        endpoint,
        args.model_path,
        args.model_name,
        kv_cache_block_size=args.block_size,
        runtime_config=config,
        worker_type=worker_type,
        needs=needs,
    )
    events = asyncio.ensure_future(publish_kv_events(llm, endpoint, dp_size, args.block_size))
    try:
        await endpoint.serve_endpoint(Worker(llm, args.role).generate)
    finally:
        events.cancel()


if __name__ == "__main__":
    uvloop.run(main())
