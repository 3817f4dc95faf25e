"""What a request yields, with the fields of `RequestOutput` that workers read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.fake_engine.release import Release
from examples.fake_engine.scheduler import EngineCall, Scheduler

N_GENERATED = 3  # tokens of an output without max_tokens; a context request always makes one


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One sequence, cumulative.

    Attributes:
        finish_reason: `stop`, `length`, or None while it goes on.
        disaggregated_params: What to hand to the generation engine, with the attention-DP rank that
            computed the prompt in `ctx_dp_rank`; on context requests only.
    """

    index: int = 0
    token_ids: list[int]
    finish_reason: str | None
    disaggregated_params: Any
    stop_reason: str | None = None
    logprobs: list[Any] | None = None
    prompt_logprobs: list[Any] | None = None
    request_perf_metrics: Any = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One step of a request.

    Attributes:
        prompt: The prompt's text, which a request by token ids does not have.
        cached_tokens: Prompt tokens that were in the KV cache.
    """

    request_id: int
    prompt: str | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    outputs: list[CompletionOutput]
    finished: bool
    cached_tokens: int


class GenerationResult:
    """What `generate_async` returns: iterate it for outputs, or abort it.

    Args:
        release: What the outputs look like.
        scheduler: Runs the request.
        call: The request.
        token_interval_s: Seconds that each token takes.
        on_end: Called once with the call when it is over, however that came.
    """

    def __init__(
        self,
        release: Release,
        scheduler: Scheduler,
        call: EngineCall,
        token_interval_s: float,
        on_end: Callable[[EngineCall], None],
    ) -> None:
        self.request_id = call.request_id
        self._release = release
        self._scheduler = scheduler
        self._call = call
        self._token_interval_s = token_interval_s
        self._on_end = on_end
        self._is_over = False
        self._outputs = self._run()

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> RequestOutput:
        return await self._outputs.__anext__()

    def abort(self) -> None:
        """Stop the request; its iteration ends."""
        self._call.aborted = not self._call.finished
        self._end()

    def _end(self, generated: Sequence[int] = ()) -> None:
        self._scheduler.finish(self._call, generated)
        if not self._is_over:
            self._is_over = True
            self._on_end(self._call)

    async def _run(self) -> AsyncIterator[RequestOutput]:
        call = self._call
        params = call.kwargs.get("disaggregated_params")
        is_context = params is not None and params.request_type == "context_only"
        wanted = getattr(call.kwargs.get("sampling_params"), "max_tokens", None) or N_GENERATED
        n_generated = 1 if is_context else wanted
        tokens = [100 + (call.request_id + i) % 50 for i in range(n_generated)]
        try:
            await self._scheduler.wait_until_placed(call)
            for n in range(1 if call.kwargs.get("streaming") else n_generated, n_generated + 1):
                if self._token_interval_s:
                    await asyncio.sleep(self._token_interval_s)
                if call.aborted:
                    return
                if n == n_generated:
                    call.finished = True
                    self._end(tokens)
                yield self._output(tokens[:n], is_context)
        finally:
            self._end()

    def _output(self, tokens: list[int], is_context: bool) -> RequestOutput:
        call = self._call
        reason = "length" if is_context else "stop"
        completion = CompletionOutput(
            token_ids=tokens,
            finish_reason=reason if call.finished else None,
            disaggregated_params=self._hand_over(tokens) if is_context else None,
        )
        return RequestOutput(
            request_id=call.request_id,
            prompt=None,
            prompt_token_ids=list(call.token_ids),
            outputs=[completion],
            finished=call.finished,
            cached_tokens=call.cached_tokens or 0,
        )

    def _hand_over(self, tokens: list[int]) -> Any:
        disagg_id = self._call.kwargs["disaggregated_params"].disagg_request_id
        return self._release.disaggregated_params(
            request_type="context_only",
            first_gen_tokens=tokens,
            ctx_request_id=self._call.request_id if disagg_id is None else disagg_id,
            disagg_request_id=disagg_id,
            opaque_state=b"fake-engine",
            ctx_dp_rank=self._call.rank,
        )
