"""Sends requests as users do, by the packages of OpenAI and Anthropic, and finds them in every phase."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

from tests.e2e.model_folder import MODEL
from tests.e2e.stack import FRONTEND, START_TIMEOUT_S, Stack, Worker, wait_for

TURN = "the quick brown fox jumps over the lazy dog"


def openai_client(base: str = FRONTEND) -> openai.OpenAI:
    """Returns a client that does not try again; close it."""
    return openai.OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0, timeout=30)


def anthropic_client() -> anthropic.Anthropic:
    """Returns a client that does not try again; close it."""
    return anthropic.Anthropic(base_url=FRONTEND, api_key="unused", max_retries=0, timeout=30)


@dataclass
class EngineRequest:
    """What one worker did with one request.

    Attributes:
        worker: The worker.
        request_id: The request's id, the same in both phases.
        call: Its engine call.
    """

    worker: Worker
    request_id: str
    call: dict[str, Any]

    @property
    def conversation_id(self) -> str | None:
        """The id that the engine got, None for none."""
        found: str | None = self.call["conversation_id"]
        return found

    @property
    def forced_rank(self) -> int | None:
        """The rank that the engine got explicitly, None for none."""
        found: int | None = (self.call["kwargs"]["scheduling_params"] or {}).get("attention_dp_rank")
        return found

    @property
    def rank(self) -> int:
        """The rank that it ran on."""
        found: int = self.call["rank"]
        return found

    @property
    def record(self) -> Any:
        """What the worker's sidecar has of it: its decision and its finish report."""
        return self.worker.get_record(self.request_id)


def new_request_id() -> str:
    """Returns an id that Dynamo takes as the request's."""
    return str(uuid.uuid4())


def find_engine_requests(stack: Stack, request_id: str) -> dict[str, EngineRequest]:
    """Returns what each worker did with a request; it must have been the only one since the last time."""
    found = {}
    for name, worker in stack.workers.items():
        (call,) = wait_for(lambda w=worker: w.take_new_calls() or None, f"an engine call of {name}")
        found[name] = EngineRequest(worker, request_id, call)
    return found


def send(
    stack: Stack,
    text: str = TURN,
    *,
    session: str | None = None,
    headers: Mapping[str, str] | None = None,
    messages: list[dict[str, str]] | None = None,
    nvext: Mapping[str, object] | None = None,
) -> dict[str, EngineRequest]:
    """Sends one chat request with the OpenAI package; returns what each worker did with it."""
    request_id = new_request_id()
    identity = {"X-Dynamo-Session-ID": session} if session else {}
    with openai_client() as client:
        client.chat.completions.create(
            model=MODEL,
            messages=messages or [{"role": "user", "content": text}],  # type: ignore[arg-type]
            max_tokens=4,
            extra_headers={"x-dynamo-request-id": request_id, **identity, **(headers or {})},
            extra_body={"nvext": dict(nvext)} if nvext else None,
        )
    return find_engine_requests(stack, request_id)


def converse(
    stack: Stack, session: str | None, n_turns: int = 3, **options: Any
) -> list[dict[str, EngineRequest]]:
    """Holds one conversation, its history growing with each turn; returns what each worker did, by turn."""
    messages: list[dict[str, str]] = []
    turns = []
    for number in range(n_turns):
        messages.append({"role": "user", "content": f"{session} turn {number}: {TURN}"})
        turns.append(send(stack, session=session, messages=list(messages), **options))
        messages.append({"role": "assistant", "content": "yes"})
    return turns


def await_ready(stack: Stack) -> None:
    """Waits until a request goes through all workers of the stack."""

    def probe() -> bool | None:
        stack.await_running()
        try:
            with openai_client() as client:
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "ready?"}], max_tokens=1
                )
        except openai.APIError:
            return None
        return all(worker.engine_calls() for worker in stack.workers.values()) or None

    wait_for(probe, "the stack to serve", START_TIMEOUT_S)
    for worker in stack.workers.values():
        worker.take_new_calls()
