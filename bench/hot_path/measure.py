"""One benchmark run: every figure beside its peers, in rounds that take turns."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from bench.hot_path import in_process
from bench.hot_path.drive import Call, Sample, drive
from bench.hot_path.load_generator import (
    PREPARED,
    make_echo_call,
    make_plan_call,
    open_client,
    open_echo,
    open_raw,
)
from bench.hot_path.prepared import open_streams
from bench.process import ServerProcess, start_sidecar
from bench.workload import Workload
from worker_client._send_queue import MAX_BATCH_ITEMS

CONVERSATIONS = 1_000
COLD_CONVERSATIONS = 16_384
"""More conversations than the sidecar caches decisions of, so that each is cold when it returns."""
FEW_HEADERS, MANY_HEADERS = 5, 40
STREAM_SHAPE = {"batch": MAX_BATCH_ITEMS, "count": 2}
WARM_UP_S = 0.3

Samples = dict[tuple[str, int], list[Sample]]
"""By load generator and number in flight, one for each round."""


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    """One of the things that are compared.

    Attributes:
        responses_per_call: how many responses one call gets.
    """

    call: Call
    server: ServerProcess
    responses_per_call: int = 1


@dataclass(frozen=True, slots=True)
class Bench:
    """The processes of a run, and what drives them."""

    sidecar: ServerProcess
    echo: Callable[[bytes], Awaitable[bytes]]
    load_generators: dict[str, LoadGenerator]

    async def sample(
        self, in_flight: tuple[int, ...], rounds: int, duration_s: float, *names: str
    ) -> Samples:
        """Drives the named load generators in turns; each run of each takes `duration_s` seconds."""
        samples: Samples = {}
        for name in names:
            load_generator = self.load_generators[name]
            workers = max(max(in_flight) // load_generator.responses_per_call, 1)
            await drive(load_generator.call, workers, WARM_UP_S, load_generator.server.cpu_s)
        for _ in range(rounds):
            for number in in_flight:
                for name in names:
                    load_generator = self.load_generators[name]
                    sample = await drive(
                        load_generator.call,
                        max(number // load_generator.responses_per_call, 1),
                        duration_s,
                        load_generator.server.cpu_s,
                        responses_per_call=load_generator.responses_per_call,
                    )
                    samples.setdefault((name, number), []).append(sample)
        return samples


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    """Starts the sidecar and its peers, each in a process of its own, and connects to them."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench-")))
        few, many = Workload(CONVERSATIONS, FEW_HEADERS), Workload(CONVERSATIONS, MANY_HEADERS)
        sidecar = await stack.enter_async_context(start_sidecar(folder))
        echo_server = await stack.enter_async_context(_start_peer("echo_server", folder / "echo.sock"))
        raw_server = await stack.enter_async_context(_start_peer("raw_server", folder / "raw.sock"))
        client = await stack.enter_async_context(open_client(sidecar.socket_path))
        echo = await stack.enter_async_context(open_echo(echo_server.socket_path))
        cold_conversations = Workload(COLD_CONVERSATIONS, FEW_HEADERS)
        streams = {
            "stream": open_streams(sidecar.socket_path, few, PREPARED, **STREAM_SHAPE),
            "stream, with finishes": open_streams(
                sidecar.socket_path, few, PREPARED, **STREAM_SHAPE, has_finishes=True
            ),
            "stream, new ids": open_streams(
                sidecar.socket_path, cold_conversations, COLD_CONVERSATIONS, **STREAM_SHAPE
            ),
        }
        raw = await stack.enter_async_context(open_raw(raw_server.socket_path, few))
        plan, plan_many = make_plan_call(client, few), make_plan_call(client, many)
        load_generators = {
            "plan": LoadGenerator(plan, sidecar),
            "plan, 40 headers": LoadGenerator(plan_many, sidecar),
            "echo": LoadGenerator(make_echo_call(echo, few), echo_server),
            "raw": LoadGenerator(raw, raw_server),
        }
        for name, opening in streams.items():
            call = await stack.enter_async_context(opening)
            load_generators[name] = LoadGenerator(call, sidecar, MAX_BATCH_ITEMS)
        yield Bench(sidecar, echo, load_generators)


def _start_peer(module: str, path: Path) -> ServerProcess:
    return ServerProcess(f"bench.hot_path.{module}", [str(path)], path)


def median_ratio(samples: Samples, ours: tuple[str, int], theirs: tuple[str, int], figure: str) -> float:
    """Returns the median over the rounds of our figure divided by theirs of the same round."""
    pairs = zip(samples[ours], samples[theirs], strict=True)
    return float(statistics.median(getattr(our, figure) / getattr(their, figure) for our, their in pairs))


def median_cpu_ratio(samples: Samples, ours: tuple[str, int], theirs: tuple[str, int]) -> float:
    """Returns the median ratio of the processor time of client and server together, for each response."""
    pairs = zip(samples[ours], samples[theirs], strict=True)
    return statistics.median(
        (our.client_cpu_s + our.server_cpu_s) / (their.client_cpu_s + their.server_cpu_s)
        for our, their in pairs
    )


def median_sample(samples: list[Sample]) -> Sample:
    """Returns the median of each figure."""
    return Sample(
        *(statistics.median(getattr(one, field.name) for one in samples) for field in fields(Sample))
    )


def median_figure(samples: Samples, key: tuple[str, int], figure: str) -> float:
    """Returns the median of one figure."""
    return float(getattr(median_sample(samples[key]), figure))


async def time_in_process(duration_s: float) -> dict[str, float]:
    """Returns the microseconds of the decision alone and of a helper in the worker, by headers."""
    times = {}
    for headers in (FEW_HEADERS, MANY_HEADERS):
        workload = Workload(CONVERSATIONS, headers)
        times[f"decision, {headers} headers"] = in_process.time_decision(workload, duration_s)
        times[f"helper, {headers} headers"] = in_process.time_helper(workload, duration_s)
        await asyncio.sleep(0)
    return times


async def time_starts(count: int) -> float:
    """Returns the median seconds from starting a sidecar to its first accepted connection."""
    times = []
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="rh-bench-") as name:
            async with start_sidecar(Path(name)) as sidecar:
                times.append(sidecar.start_s)
    return statistics.median(times)
