"""Waiting for a plan, and ending it with the block that it was made for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any

from worker_client._model import FinishOutcome
from worker_client._plan import Plan


class PendingPlan:
    """A plan that was asked for: enter it with `async with`, or await it and call `finish` yourself."""

    def __init__(self, decide: Callable[[], Coroutine[Any, Any, Plan]]) -> None:
        self._decide = decide
        self._plan: Plan | None = None

    def __await__(self) -> Generator[Any, None, Plan]:
        return self._decide().__await__()

    async def __aenter__(self) -> Plan:
        self._plan = await self
        return self._plan

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the request, without waiting: the block may be left in any task, or by the collector."""
        if self._plan is None:
            return
        if error_type is None:
            outcome = FinishOutcome.COMPLETED
        elif issubclass(error_type, (asyncio.CancelledError, GeneratorExit)):
            outcome = FinishOutcome.CANCELLED
        else:
            outcome = FinishOutcome.FAILED
        self._plan.finish(outcome)
