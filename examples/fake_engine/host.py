"""Runs a worker with the fake engine as its `tensorrt_llm`: `python -m examples.fake_engine.host`.

    python -m examples.fake_engine.host --release conversation_params-1.3.0rc29 \
        examples/own_worker.py --role prefill --model-path MODEL

The worker is started as Python would start it and sees nothing but another `tensorrt_llm`.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import runpy
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from examples.fake_engine.engine import FakeLLM
from examples.fake_engine.prefix_cache import MAX_BLOCKS, TOKENS_PER_BLOCK
from examples.fake_engine.release import RELEASES, Release, install
from examples.fake_engine.scheduler import EngineCall


def main() -> None:
    """Reads the arguments and becomes the worker."""
    releases = {f"{release.name}-{release.version}": release for release in RELEASES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--release", choices=releases, required=True)
    parser.add_argument("--ignores-id", action="store_true", help="its conversation router only balances")
    parser.add_argument("--records-first-rank", action="store_true", help="as since TensorRT-LLM#16815")
    parser.add_argument("--token-interval-ms", type=float, default=0.0)
    parser.add_argument("--record", type=Path, help="gets a JSON line for each engine call that ended")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    llm_class = make_llm_class(
        releases[args.release],
        ignores_id=args.ignores_id,
        records_first_rank=args.records_first_rank,
        token_interval_s=args.token_interval_ms / 1000,
        on_end=(lambda call: None) if args.record is None else lambda call: _record(args.record, call),
    )
    with install(releases[args.release], llm_class=llm_class):
        try:
            # Dynamo's own handlers import far more than they use here.
            from examples.fake_engine import dynamo_imports
        except ImportError:
            pass
        else:
            dynamo_imports.install(releases[args.release])
        sys.argv = [str(args.script), *args.arguments]
        runpy.run_path(str(args.script), run_name="__main__")


def make_llm_class(
    release: Release,
    *,
    ignores_id: bool = False,
    records_first_rank: bool = False,
    token_interval_s: float = 0.0,
    on_end: Callable[[EngineCall], None] = lambda call: None,
) -> type[FakeLLM]:
    """Returns a class that is called as `tensorrt_llm.LLM` of this release is.

    Args:
        release: The release to fake.
        ignores_id: Its conversation router ignores ids and only balances.
        records_first_rank: See `ConversationRouter`.
        token_interval_s: Seconds that each generated token takes.
        on_end: Called with each call when it is over.
    """

    class LLM(FakeLLM):
        """Takes what the real constructor takes; only what concerns attention DP has an effect."""

        tokenizer = None

        def __init__(
            self,
            model: str,
            *,
            tensor_parallel_size: int = 1,
            enable_attention_dp: bool = False,
            attention_dp_config: Mapping[str, Any] | None = None,
            **_without_effect: Any,
        ) -> None:
            config = release.attention_dp_config(**(attention_dp_config or {}))
            router = "default"
            if getattr(config, "kv_cache_routing_conversation_affinity", False):
                router = "ignores_id" if ignores_id else "conversation"
            elif config.enable_kv_cache_aware_routing:
                router = "kv_cache_aware"
            super().__init__(
                release,
                tensor_parallel_size if enable_attention_dp else 1,
                router=router,
                records_first_rank=records_first_rank,
                token_interval_s=token_interval_s,
                on_end=on_end,
            )

        def get_kv_cache_capacity(self) -> dict[str, int]:
            """Returns what the engine reports of its primary cache."""
            return {"maxNumBlocks": MAX_BLOCKS, "tokensPerBlock": TOKENS_PER_BLOCK}

        async def get_stats_async(self, timeout: float | None = None) -> AsyncIterator[dict[str, Any]]:
            """Yields one row of iteration statistics; Dynamo waits for an idle engine when it shuts down."""
            del timeout
            active = sum(1 for call in self.calls if not (call.finished or call.aborted))
            yield {
                "numActiveRequests": active,
                "numQueuedRequests": 0,
                "kvCacheStats": {"usedNumBlocks": 0, "maxNumBlocks": MAX_BLOCKS},
            }

        def shutdown(self) -> None:
            """Nothing runs on its own here."""

    return LLM


def _record(path: Path, call: EngineCall) -> None:
    entry = {
        "prompt_tokens": len(call.token_ids),
        "conversation_id": call.conversation_id,
        "rank": call.rank,
        "cached_tokens": call.cached_tokens,
        "finished": call.finished,
        "aborted": call.aborted,
        "kwargs": {name: _plain(value) for name, value in call.kwargs.items()},
    }
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it; of a dataclass the fields that were set."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        defaults = {field.name: field.default for field in dataclasses.fields(value)}
        return {name: _plain(item) for name, item in fields.items() if item != defaults[name]}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, dict, type(None))) else repr(value)


if __name__ == "__main__":
    main()
