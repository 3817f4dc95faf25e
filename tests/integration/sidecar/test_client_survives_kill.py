"""The real sidecar process is killed and restarted under a loop of requests that must not be affected."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM
from tests.support.builders import build_profile
from tests.support.wait import wait_until
from worker_client import ClientConfig, Phase, RoutingHintClient

ENGINE = build_profile()
KNOWN_S, UNKNOWN_S = 0.25, 1.0
SLACK_S = 5.0
"""Far above what a busy machine adds to a timer; without a deadline a request would wait for ever."""


@dataclass
class WorkerHarness:
    """Serves requests of known and of new conversations.

    Attributes:
        n_served: requests so far.
        problems: what must not happen and did, a line for each time.
        reasons: why the client decided by itself, since the last `serve_until`.
    """

    client: RoutingHintClient
    llm: FakeLLM = field(default_factory=lambda: FakeLLM(CONVERSATION_PARAMS, 4, router="conversation"))
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    n_served: int = 0
    problems: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    async def serve(self, name: str, identity: dict[str, object], limit_s: float) -> None:
        """Runs one request through client and engine."""
        request = {"model": "m", "token_ids": [1, 2, 3], "routing": {"dp_rank": 2}, **identity}
        loop = asyncio.get_running_loop()
        submitted_at_s = loop.time()
        async with self.client.plan(request, phase=Phase.PREFILL, engine=ENGINE) as plan:
            waited_s = loop.time() - submitted_at_s
            self.reasons.add(plan.reason)
            result = self.llm.generate_async([1, 2, 3], **plan.engine_kwargs())
            async for output in result:
                plan.observe(output)
        call = self.llm.calls[-1]
        if call.conversation_id != name or call.kwargs["scheduling_params"] is not None:
            self.problems.append(f"{name.partition('-')[0]} lost its id: {plan.reason}")
        if waited_s > limit_s + SLACK_S:
            self.problems.append(f"waited {waited_s} s")
        self.n_served += 1

    async def serve_round(self) -> None:
        """One turn of each known conversation, and one new conversation by each carrier that survives."""
        for number in range(4):
            name = f"known-conversation-{number}"
            await self.serve(name, {"agent_context": {"session_id": name}}, KNOWN_S)
        for shape in ("agent_context", "session_control", "conversation_params"):
            name = f"new-conversation-{next(self.numbers):06}"
            identity: dict[str, object] = {
                "agent_context": {"agent_context": {"session_id": name}},
                "session_control": {"routing": {"dp_rank": 2, "session_control": {"session_id": name}}},
                "conversation_params": {"conversation_params": {"conversation_id": name}},
            }[shape]
            await self.serve(name, identity, UNKNOWN_S)

    async def serve_until(self, reason: str) -> None:
        """Serves rounds until a plan had that reason; an empty one is a decision of the sidecar."""
        self.reasons.clear()

        async def is_given() -> bool:
            await self.serve_round()
            return reason in self.reasons

        await wait_until(is_given, lambda: f"reason {reason!r}, got {self.reasons}", pause_s=0)


StartProcess = Callable[..., Any]


async def kill_twice(start: StartProcess, **config: object) -> tuple[WorkerHarness, list[str]]:
    """Runs the loop of requests over two kills and restarts; returns what happened and the events logged."""
    process = start()
    settings = {"known_timeout_s": KNOWN_S, "unknown_timeout_s": UNKNOWN_S, **config}
    with capture_logs() as lines:
        async with RoutingHintClient(ClientConfig(f"unix://{process.socket_path}", **settings)) as client:
            worker = WorkerHarness(client)
            for _ in range(2):
                await worker.serve_until("")
                loop = asyncio.create_task(worker.serve_until("connection-refused"))
                await asyncio.sleep(0)  # the kill falls into the middle of a request
                process.signal(signal.SIGKILL)
                await loop
                for _ in range(20):
                    await worker.serve_round()
                process = await asyncio.to_thread(start)
            await worker.serve_until("")
            stats = client.stats()
    assert "internal_errors" not in stats
    return worker, [line["event"] for line in lines if line["event"].startswith("sidecar")]


async def test_kill_9_affects_no_request_and_is_recovered_from(start_sidecar_process: StartProcess) -> None:
    """No exception, no wait over the deadlines, and every structured conversation keeps its id, twice."""
    worker, events = await kill_twice(start_sidecar_process)
    assert worker.problems == []
    assert worker.n_served > 300
    assert events == ["sidecar_unavailable", "sidecar_recovered"] * 2


@pytest.mark.parametrize(
    ("config", "who_loses"),
    [
        ({"memory_entries": 0, "local_rule": False}, {"known", "new"}),
        ({"local_rule": False}, {"new"}),
    ],
    ids=["neither", "memory-alone"],
)
async def test_without_memory_and_local_rule_a_kill_loses_ids(
    start_sidecar_process: StartProcess,
    config: dict[str, object],
    who_loses: set[str],
) -> None:
    """The control: it is these two that protect requests."""
    worker, _ = await kill_twice(start_sidecar_process, **config)
    assert {problem.partition(" ")[0] for problem in worker.problems} == who_loses
