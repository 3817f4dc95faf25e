"""A million conversations through a real sidecar process: memory, and the time of one decision.

`make bench-placement-memory`. The exit code is 1 if the process grows by more than 64 MiB. The decision
is held against a bare unary echo of the same sizes over the same kind of socket, in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc
import grpc.aio
import psutil
from rich.console import Console
from rich.progress import track

from bench.decoding import decode_whole_request
from bench.hot_path.load_generator import open_echo
from bench.process import ServerProcess
from routing_hints.metrics import MetricStore
from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from sidecar.decision.decide import apply_placement, decide
from sidecar.placement.placement import Placement, Ticket
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.telemetry import metrics

CONVERSATIONS = 1_000_000
MAX_GROWTH_MIB = 64.0
_BATCH = 500
_ECHOES = 3_000
_RESPONSE_BYTES = 160
_DECISIONS = 20_000
_ENGINE = types_pb2.EngineProfile(
    instance_id="engine-start",
    adp_router=types_pb2.ADP_ROUTER_DEFAULT,
    rank_source=types_pb2.RANK_SOURCE_SIDECAR,
    dp_size=8,
)


def make_request(number: int, turn: int = 0) -> service_pb2.EnrichRequest:
    """Returns one turn of one conversation."""
    return service_pb2.EnrichRequest(
        request_id=f"request-{number}-{turn}",
        phase=types_pb2.PHASE_PREFILL,
        identity=types_pb2.Identity(headers={"x-session-id": f"a-session-of-some-length-{number:012d}"}),
        engine=_ENGINE,
        model="model",
        prompt_tokens=5_000 + number % 1_000,
    )


async def send_all(target: str, process: psutil.Process) -> list[tuple[int, float]]:
    """Sends every conversation once; the next message finishes it. Returns MiB above idle as it goes."""
    grown: list[tuple[int, float]] = []
    idle_mib = process.memory_info().rss / 2**20
    async with grpc.aio.insecure_channel(target) as channel:
        call = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()
        hello = service_pb2.StreamHello(worker_id="worker")
        finishes: list[service_pb2.Finish] = []
        for begin in track(range(0, CONVERSATIONS, _BATCH), description="conversations"):
            items = [
                service_pb2.EnrichItem(seq=number + 1, request=make_request(number))
                for number in range(begin, begin + _BATCH)
            ]
            await call.write(service_pb2.EnrichStreamRequest(hello=hello, items=items, finishes=finishes))
            response = await call.read()
            finishes = [_finish(result.response) for result in response.results]
            if (begin + _BATCH) % 50_000 == 0:
                grown.append((begin + _BATCH, process.memory_info().rss / 2**20 - idle_mib))
        call.cancel()
    return grown


def _finish(decision: service_pb2.EnrichResponse) -> service_pb2.Finish:
    return service_pb2.Finish(
        phase=types_pb2.PHASE_PREFILL,
        decision_id=decision.decision_id,
        outcome=service_pb2.FINISH_OUTCOME_COMPLETED,
        applied_directive=decision.rank_directive,
        observed_dp_rank=decision.hints.dp_rank,
    )


async def measure_echo(folder: Path) -> float:
    """Returns the median seconds of a bare grpc.aio unary call with the sizes of a request and a response."""
    path = folder / "echo.sock"
    size = make_request(0).ByteSize()
    payload = _RESPONSE_BYTES.to_bytes(4, "big") + bytes(size - 4)
    times = []
    async with ServerProcess("bench.hot_path.echo_server", [str(path)], path), open_echo(path) as echo:
        for _ in range(_ECHOES):
            began = time.perf_counter()
            await echo(payload)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_decisions(requests: list[service_pb2.EnrichRequest]) -> float:
    """Returns the median seconds of one decision with its placement, without codec and record."""
    policy = compile_policy(Policy())
    store = MetricStore(metrics.TABLE)
    placement = Placement(time.monotonic, store, lambda: policy.placement, lambda phase: None)
    times = []
    for number, request in enumerate(map(decode_whole_request, requests)):
        began = time.perf_counter()
        decision = decide(request, policy)
        if decision.placement_key is None:
            raise RuntimeError("the request is not placed")
        proposal = placement.propose(request, decision.placement_key)
        if proposal is None:
            raise RuntimeError("placement pauses")
        apply_placement(request, decision, proposal.rank, proposal.placement)
        placement.commit(proposal, Ticket(str(number), (1, number)))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def main() -> int:
    """Runs everything and prints it; returns 1 if the process grew too much."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="rh") as name:
        folder = Path(name)
        echo_s = await measure_echo(folder)
        new_s = measure_decisions([make_request(number) for number in range(_DECISIONS)])
        later_s = measure_decisions([make_request(number % 100, turn=number) for number in range(_DECISIONS)])
        target = f"unix://{folder}/sidecar.sock"
        sidecar = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sidecar", "serve", "--listen", target, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/sidecar.sock") as channel:
                await asyncio.wait_for(channel.channel_ready(), timeout=30)
            began = time.perf_counter()
            grown = await send_all(f"unix:{folder}/sidecar.sock", psutil.Process(sidecar.pid))
            took_s = time.perf_counter() - began
        finally:
            sidecar.terminate()
            await sidecar.wait()
    for count, mib in grown:
        console.print(f"{count:9,} conversations: {mib:6.1f} MiB above idle")
    console.print(f"{CONVERSATIONS / took_s:,.0f} decisions a second, one stream, {_BATCH} in a message")
    for label, decision_s in (("first turn", new_s), ("later turn", later_s)):
        console.print(
            f"decision about a {label}, alone: {decision_s * 1e6:.1f} us, "
            f"1/{echo_s / decision_s:.0f} of a bare unary echo ({echo_s * 1e6:.0f} us)"
        )
    return 1 if max(mib for _, mib in grown) > MAX_GROWTH_MIB else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
