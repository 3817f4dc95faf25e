"""What a request yields, with the fields of `RequestOutput` that workers read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from examples.standin_engine.release import Release
from examples.standin_engine.scheduler import EngineCall, Scheduler

N_GENERATED = 3  # tokens of an answer; a context request always makes one


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


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One step of a request; `cached_tokens` counts prompt tokens that were in the KV cache."""

    request_id: int
    outputs: list[CompletionOutput]
    finished: bool
    cached_tokens: int


class GenerationResult:
    """What `generate_async` returns: iterate it for outputs, or abort it."""

    def __init__(self, release: Release, scheduler: Scheduler, call: EngineCall) -> None:
        self.request_id = call.request_id
        self._release = release
        self._scheduler = scheduler
        self._call = call
        self._outputs = self._run()

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> RequestOutput:
        return await self._outputs.__anext__()

    def abort(self) -> None:
        """Stop the request; its iteration ends."""
        self._call.aborted = True
        self._scheduler.finish(self._call)

    async def _run(self) -> AsyncIterator[RequestOutput]:
        call = self._call
        params = call.kwargs.get("disaggregated_params")
        is_context = params is not None and params.request_type == "context_only"
        n_generated = 1 if is_context else N_GENERATED
        tokens = [100 + (call.request_id + i) % 50 for i in range(n_generated)]
        try:
            await self._scheduler.wait_until_placed(call)
            for n in range(1 if call.kwargs.get("streaming") else n_generated, n_generated + 1):
                if call.aborted:
                    return
                if n == n_generated:
                    call.finished = True
                    self._scheduler.finish(call, tokens)
                yield self._output(tokens[:n], is_context)
        finally:
            self._scheduler.finish(call)

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
            opaque_state=b"stand-in",
            ctx_dp_rank=self._call.rank,
        )
