"""Replays captured requests of one three-turn conversation through client, sidecar and a fake engine.

Run it with `make demo`. The requests arrived at real prefill and decode workers of Dynamo 1.6.1; the sidecar
is the real process; the fake engines pin as the engine's conversation router does. A decode request's
`prefill_result` is that of the fake prefill engine, since the captured one belongs to another engine.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import structlog

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from worker_client import ClientConfig, EngineProfile, EngineSource, Phase, Plan, RoutingHintClient

CAPTURES = Path(__file__).parent.parent / "tests" / "data" / "captures" / "1.6.1"
TURNS = (1, 2, 3)
DP_SIZE = 4


@dataclasses.dataclass
class Worker:
    """One worker: its engine, and the profile that the client takes of it."""

    phase: Phase
    engine: FakeLLM
    profile: EngineSource


async def main() -> int:
    """Runs the replay; returns 0 if the conversation kept its rank."""
    lines: list[MutableMapping[str, Any]] = []
    _collect_log(lines)
    with install(CONVERSATION_PARAMS), tempfile.TemporaryDirectory(prefix="routing-hints-") as folder:
        target = f"unix://{folder}/sidecar.sock"
        sidecar = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", "serve", "--listen", target, stderr=asyncio.subprocess.PIPE
        )
        try:
            await _await_ready(Path(folder, "sidecar.sock"))
            ranks = await _replay(ClientConfig(target=target))
        finally:
            if sidecar.returncode is None:
                sidecar.terminate()
            await sidecar.communicate()
    print("\nThe worker's log, each line once per process:\n")
    for line in lines:
        event = line.pop("event")
        print(f"  {line.pop('level').upper():7} {event}")
        print(*(f"            {name}={value}" for name, value in line.items()), sep="\n")
    return 0 if len(ranks) == 1 and lines and event == "conversation_affinity_confirmed" else 1


async def _replay(config: ClientConfig) -> set[int]:
    """Sends every turn through both phases; returns the prefill ranks that were observed."""
    prefill, decode = (_make_worker(phase) for phase in (Phase.PREFILL, Phase.DECODE))
    ranks = set()
    async with RoutingHintClient(config) as client:
        for turn in TURNS:
            request, context = _load(f"prefill_disagg_session_turn{turn}")
            params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only")
            output, plan = await _serve(client, prefill, request, context, params)
            handed_over = output.outputs[0].disaggregated_params
            ranks.add(handed_over.ctx_dp_rank)
            _show(
                turn, prefill, request, plan, f", {output.cached_tokens} of {_count(request)} tokens cached"
            )
            request, context = _load(f"decode_disagg_session_turn{turn}")
            request["prefill_result"] = {
                "disaggregated_params": _to_dict(handed_over),
                "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
            }
            params = dataclasses.replace(handed_over, request_type="generation_only")
            _, plan = await _serve(client, decode, request, context, params)
            _show(turn, decode, request, plan)
    return ranks


async def _serve(
    client: RoutingHintClient, worker: Worker, request: dict[str, Any], context: object, params: object
) -> tuple[Any, Plan]:
    """Runs one phase as a worker does; a worker needs no more of the client than these lines."""
    async with client.plan(request, context, phase=worker.phase, engine=worker.profile) as plan:
        kwargs = plan.engine_kwargs(disaggregated_params=params)
        async for output in worker.engine.generate_async(request["token_ids"], **kwargs):
            plan.observe(output)
    return output, plan


def _make_worker(phase: Phase) -> Worker:
    engine = FakeLLM(CONVERSATION_PARAMS, DP_SIZE, router="conversation")
    return Worker(phase, engine, EngineProfile.lazy(lambda: engine))


def _load(name: str) -> tuple[dict[str, Any], object]:
    capture = json.loads((CAPTURES / f"{name}.json").read_text())
    context = capture["worker_context"]
    return capture["worker_request"], SimpleNamespace(id=lambda: context["id"], metadata=context["metadata"])


def _to_dict(params: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(params)
    return fields | {"opaque_state": base64.b64encode(params.opaque_state).decode()}


def _show(turn: int, worker: Worker, request: dict[str, Any], plan: Plan, cached: str = "") -> None:
    call = worker.engine.calls[-1]
    arguments = [
        f"{name}={_summarize(value)}"
        for name, value in call.kwargs.items()
        if name in ("scheduling_params", "conversation_params")
    ]
    print(f"turn {turn} {plan.phase.name.lower():8} carrier {plan.decision.source_detail}")
    print(f"                conversation id {plan.conversation_id}")
    router_rank = request["routing"]["dp_rank"]
    print(f"                directive {plan.applied_directive.name}, router's rank {router_rank}")
    print(f"                engine gets {', '.join(arguments)}")
    print(f"                observed rank {call.rank}{cached}")


def _count(request: dict[str, Any]) -> int:
    return len(request["token_ids"])


def _summarize(value: Any) -> str:
    return "None" if value is None else repr(value.conversation_id)


def _collect_log(lines: list[MutableMapping[str, Any]]) -> None:
    """Replaces the worker's own logging setup."""

    def keep(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        lines.append(line)
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.add_log_level, keep])


async def _await_ready(path: Path) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), timeout=30)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
