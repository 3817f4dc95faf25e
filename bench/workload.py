"""Captured requests as an endless mixed load: both phases, many conversations, turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from worker_client import AdpRouter, EngineDialect, EngineProfile, Phase, RankSource

CAPTURES = Path(__file__).parent.parent / "tests" / "data" / "captures" / "1.6.1"
PHASES = (Phase.PREFILL, Phase.DECODE)
TURNS = (1, 2, 3)
ENGINE = EngineProfile(
    dialect=EngineDialect.CONVERSATION_PARAMS,
    adp_router=AdpRouter.CONVERSATION,
    dp_size=4,
    instance_id="5f0c3a7e9d2b4c61a8e4f7b09c1d2e35",
    version="1.3.0rc20",
    max_active_requests=256,
)
"""As `EngineProfile.detect` makes it, with a nonce of a real one's length."""
PLACING_ENGINE = EngineProfile(
    dialect=EngineDialect.RANK_ONLY,
    adp_router=AdpRouter.DEFAULT,
    rank_source=RankSource.SIDECAR,
    dp_size=4,
    instance_id="c1d2e3f4a5b60718293a4b5c6d7e8f90",
    version="1.2.1",
    max_active_requests=256,
)

# What a client behind a proxy sends anyway; none of it changes a decision.
_HEADERS = {
    "host": "inference.example.com",
    "user-agent": "OpenAI/Python 2.8.1",
    "accept": "application/json",
    "content-type": "application/json",
    "x-request-id": "6f0c4b7e-2a4a-4a0f-9a55-1c8b1f0f7a11",
    "content-length": "4096",
    "accept-encoding": "gzip, deflate, br, zstd",
    "connection": "keep-alive",
    "x-forwarded-for": "203.0.113.7",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "inference.example.com",
    "x-real-ip": "203.0.113.7",
    "via": "1.1 proxy",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=1",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "2.8.1",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.12.3",
    "x-stainless-async": "async:asyncio",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
}


@dataclass(frozen=True, slots=True)
class Context:
    """The worker's context object, as Dynamo hands it over."""

    request_id: str
    metadata: dict[str, str]

    def id(self) -> str:
        """Returns the request's id."""
        return self.request_id


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One engine request, with what `RoutingHintClient.plan` takes of it."""

    request: dict[str, Any]
    context: Context
    phase: Phase
    headers: dict[str, str]
    session_id: str


class Workload:
    """Engine requests of `conversations` conversations, without end.

    Each conversation is captured requests of one real conversation under another name; its session id is as
    long as a UUID, as most clients' are.

    Args:
        conversations: how many there are before the first one comes again.
        header_count: HTTP headers that come with each request.
    """

    def __init__(self, conversations: int, header_count: int) -> None:
        self._conversations = conversations
        filler = {f"x-proxy-detail-{number}": f"value-{number}" for number in range(header_count)}
        self._headers = dict([*_HEADERS.items(), *filler.items()][:header_count])
        self._templates = [
            (phase, _load(f"{phase.name.lower()}_disagg_session_turn{turn}"))
            for turn in TURNS
            for phase in PHASES
        ]

    def requests(self) -> Iterator[EngineRequest]:
        """Yields every conversation's first request, then every one's second, and so on."""
        for step in count():
            for conversation in range(self._conversations):
                yield self.request_of(conversation, step)

    def request_of(self, conversation: int, step: int) -> EngineRequest:
        """Returns one request of one conversation; `step` counts them from 0, prefill and decode in turns."""
        phase, template = self._templates[step % len(self._templates)]
        session_id = f"7f3a4b1d-9c55-4b1d-8a7e-{conversation:012x}"
        request = template | {"agent_context": template["agent_context"] | {"session_id": session_id}}
        return EngineRequest(
            request, Context(f"{conversation:08x}-{step:08x}", {}), phase, self._headers, session_id
        )


def _load(name: str) -> dict[str, Any]:
    capture: dict[str, Any] = json.loads((CAPTURES / f"{name}.json").read_text())
    request: dict[str, Any] = capture["worker_request"]
    return request
