"""A worker that has HTTP headers and a body instead of a Dynamo request: OpenAI's completions."""

import argparse
import json
import time
from typing import Any

from aiohttp import web
from tensorrt_llm import LLM, SamplingParams

from worker_client import EngineProfile, Phase, RoutingHintClient


class Worker:
    """Serves one engine."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.hints = RoutingHintClient.from_env()
        self.profile = EngineProfile.detect(llm)

    async def complete(self, http_request: web.Request) -> web.Response:
        """Handles `POST /v1/completions` with a prompt of token ids."""
        body: dict[str, Any] = await http_request.json()
        request = {"model": body["model"], "token_ids": body["prompt"]}
        async with self.hints.plan(
            request,
            phase=Phase.AGGREGATED,
            engine=self.profile,
            headers=http_request.headers,
            body=body,
        ) as plan:
            result = self.llm.generate_async(
                inputs=body["prompt"],
                sampling_params=SamplingParams(max_tokens=body.get("max_tokens", 16)),
                **plan.engine_kwargs(),
            )
            async for output in result:
                plan.observe(output)
        completion = output.outputs[0]
        choice = {
            "index": 0,
            "text": " ".join(map(str, completion.token_ids)),
            "finish_reason": completion.finish_reason,
            "logprobs": None,
        }
        return web.json_response(
            {
                "id": f"cmpl-{output.request_id}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [choice],
            }
        )

    async def close(self, _app: web.Application) -> None:
        """Sends the client's last reports."""
        await self.hints.close()


def main() -> None:
    """Builds the engine and serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--engine-args", type=json.loads, default={}, help="of tensorrt_llm.LLM, as JSON")
    parser.add_argument("--port", type=int, default=8080)
    args = parser.parse_args()
    worker = Worker(LLM(model=args.model_path, **args.engine_args))
    app = web.Application()
    app.router.add_post("/v1/completions", worker.complete)
    app.on_cleanup.append(worker.close)
    web.run_app(app, host="127.0.0.1", port=args.port)


if __name__ == "__main__":
    main()
