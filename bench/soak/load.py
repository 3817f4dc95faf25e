"""A worker's load: both phases of many conversations that come and go, some cancelled in the middle."""

from __future__ import annotations

import asyncio
import random
import time

from bench.soak.ledger import Ledger
from bench.workload import ENGINE, PLACING_ENGINE, EngineRequest, Workload
from worker_client import RoutingHintClient

CONVERSATIONS = 20_000
WORKERS = 48
ENGINE_S = (0.0, 0.08)
CHURN = 0.02
"""Share of requests after which their conversation ends and another takes its place."""
CANCELLED = 0.05
HEADER_ONLY = 0.2
"""Share of conversations that only a header names, which the client can't resolve alone."""
PLACING = 0.2
"""Share of conversations on an engine that takes a rank but no conversation id."""


class Load:
    """Workers that plan and run one request after the other.

    Args:
        client: the client under test.
        ledger: takes note of every plan.
        dice: makes every choice.
    """

    def __init__(self, client: RoutingHintClient, ledger: Ledger, dice: random.Random) -> None:
        self._client = client
        self._ledger = ledger
        self._dice = dice
        self._workload = Workload(CONVERSATIONS, 5)
        self._next_conversation = CONVERSATIONS
        self._live = list(range(CONVERSATIONS))
        self._steps = [0] * CONVERSATIONS

    async def run(self) -> None:
        """Runs every worker until cancelled."""
        workers = [asyncio.create_task(self._run_worker()) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _run_worker(self) -> None:
        while True:
            request = asyncio.create_task(self._serve(self._dice.randrange(CONVERSATIONS)))
            try:
                if self._dice.random() < CANCELLED:
                    await asyncio.sleep(self._dice.uniform(0, 0.01))
                    self._ledger.cancelled += request.cancel()
                await asyncio.wait({request})
            except asyncio.CancelledError:
                request.cancel()
                await asyncio.wait({request})
                raise
            if not request.cancelled() and (error := request.exception()) is not None:
                self._ledger.errors[type(error).__name__] += 1

    async def _serve(self, slot: int) -> None:
        conversation = self._live[slot]
        engine_request = self._workload.request_of(conversation, self._steps[slot])
        self._steps[slot] += 1
        is_placing = conversation % 100 < PLACING * 100
        is_structured = is_placing or conversation % 100 >= (PLACING + HEADER_ONLY) * 100
        request, headers = (
            (engine_request.request, engine_request.headers)
            if is_structured
            else _name_in_header(engine_request)
        )
        engine = PLACING_ENGINE if is_placing else ENGINE
        began = time.perf_counter()
        async with self._client.plan(
            request, engine_request.context, phase=engine_request.phase, engine=engine, headers=headers
        ) as plan:
            took_s = time.perf_counter() - began
            self._ledger.note(
                plan.phase,
                plan.decision,
                engine_request.session_id,
                is_structured=is_structured,
                is_placing=is_placing,
                took_s=took_s,
            )
            plan.engine_kwargs()
            await asyncio.sleep(self._dice.uniform(*ENGINE_S))
        if self._dice.random() < CHURN and self._live[slot] == conversation:
            self._ledger.forget(engine_request.session_id)
            self._live[slot] = self._next_conversation
            self._steps[slot] = 0
            self._next_conversation += 1


def _name_in_header(engine_request: EngineRequest) -> tuple[dict[str, object], dict[str, str]]:
    request = {name: value for name, value in engine_request.request.items() if name != "agent_context"}
    return request, engine_request.headers | {"x-session-id": engine_request.session_id}
