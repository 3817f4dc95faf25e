"""A worker under load, as a program: conversations that take turn after turn on a fake engine.

It reports on stdout, one JSON object a line, until SIGTERM: requests so far, how many of them failed and the
last error, how many ran on another rank than their conversation's first, how many went out without the id,
and the plans by who decided. `ROUTING_HINTS_TARGET` names the sidecar. The client's log lines go to stderr.

It imports nothing of the tests, since it also runs in a container beside the installed project.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import structlog

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from worker_client import EngineProfile, Phase, RoutingHintClient

CONVERSATIONS = 16
DP_SIZE = 4
_PAUSE_S = 0.01
_REPORT_INTERVAL_S = 0.1


class LoadWorker:
    """Serves its conversations, one turn of each at a time."""

    def __init__(self) -> None:
        self._engine = FakeLLM(CONVERSATION_PARAMS, DP_SIZE, router="conversation")
        self._profile = EngineProfile.lazy(lambda: self._engine)
        self._client = RoutingHintClient.from_env()
        self._first_ranks: dict[int, int | None] = {}
        self._counts = {"requests": 0, "failures": 0, "moved": 0, "without_id": 0}
        self._last_error = ""

    async def run(self) -> None:
        """Serves until SIGTERM."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with self._client:
            tasks = [asyncio.create_task(self._converse(number)) for number in range(CONVERSATIONS)]
            tasks.append(asyncio.create_task(self._report()))
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._print()

    async def _converse(self, number: int) -> None:
        while True:
            self._counts["requests"] += 1
            try:
                await self._take_turn(number)
            except Exception as error:  # noqa: BLE001, a failed request is what this program looks for
                self._counts["failures"] += 1
                self._last_error = repr(error)
            await asyncio.sleep(_PAUSE_S)

    async def _take_turn(self, number: int) -> None:
        request = {
            "token_ids": [number, 1, 2, 3],
            "agent_context": {"session_id": f"conversation-{number}"},
            "routing": {"dp_rank": number % DP_SIZE},
        }
        params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only")
        async with self._client.plan(request, phase=Phase.PREFILL, engine=self._profile) as plan:
            kwargs: dict[str, Any] = plan.engine_kwargs(disaggregated_params=params)
            self._counts["without_id"] += kwargs.get("conversation_params") is None
            async for output in self._engine.generate_async(request["token_ids"], **kwargs):
                plan.observe(output)
        rank = plan.observed_rank
        self._counts["moved"] += self._first_ranks.setdefault(number, rank) != rank

    async def _report(self) -> None:
        while True:
            self._print()
            await asyncio.sleep(_REPORT_INTERVAL_S)

    def _print(self) -> None:
        plans = self._client.stats().get("plans", {})
        print(json.dumps({**self._counts, "last_error": self._last_error, "plans": plans}), flush=True)


async def _main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with install(CONVERSATION_PARAMS):
        await LoadWorker().run()


if __name__ == "__main__":
    asyncio.run(_main())
