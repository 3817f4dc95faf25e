"""The real process: command line, socket, signals, log."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from routing_hints.v1 import service_pb2, types_pb2
from tests.support.command import RunCommand
from tests.support.messages import AdminStub, HintsStub, OpenChannel, WorkerStream, make_request
from tests.support.sidecar import SidecarProcess, block_in_write, get_stats, make_client
from tests.support.wait import wait_until
from worker_client import EngineProfile, Origin, Phase

_POLICIES = Path(__file__).parents[2] / "data" / "policies"
_SECRET = "session-that-nobody-may-read"  # noqa: S105, no password
_TENANT = "tenant-that-nobody-may-read"
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Start = Callable[..., SidecarProcess]


def _read_log(sidecar: SidecarProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sidecar.lines]


def _make_secret_request(**fields: Any) -> service_pb2.EnrichRequest:
    identity = types_pb2.Identity(
        conversation_id=_SECRET,
        agent_context=types_pb2.AgentContext(session_id=_SECRET, parent_session_id=_SECRET),
        headers={"x-session-id": _SECRET, _SECRET: _SECRET},
        metadata={_SECRET: _SECRET},
        annotations=[_SECRET],
    )
    engine = types_pb2.EngineProfile(dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS, dp_size=4)
    return make_request(**{"tenant": _TENANT, "identity": identity, "engine": engine, **fields})


def test_the_socket_is_for_owner_and_group_whatever_the_umask(start_sidecar_process: Start) -> None:
    path = start_sidecar_process().socket_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_an_open_stream_and_ends_the_process_well(
    start_sidecar_process: Start, open_channel: OpenChannel, number: signal.Signals
) -> None:
    """Health changes before the stream ends with UNAVAILABLE; the socket is gone, and the log has both."""
    sidecar = start_sidecar_process()
    channel = await open_channel(sidecar.target)
    stream = WorkerStream(HintsStub(channel))
    await stream.enrich(_make_secret_request())
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    sidecar.signal(number)
    assert (await watch.read()).status == _NOT_SERVING
    assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
    assert sidecar.wait() == 0
    assert not sidecar.socket_path.exists()
    events = [line["event"] for line in _read_log(sidecar)]
    assert events == ["sidecar_started", "stream_opened", "sidecar_draining", "sidecar_stopped"]


async def test_the_log_names_worker_client_and_engine_of_each_stream(
    start_sidecar_process: Start, open_channel: OpenChannel
) -> None:
    """Who is connected, in which versions, can be read after the fact, too."""
    sidecar = start_sidecar_process()
    hints = HintsStub(await open_channel(sidecar.target))
    engines = [
        types_pb2.EngineProfile(instance_id="start-1", dp_size=8, version="1.3.0rc19"),
        types_pb2.EngineProfile(instance_id="start-2", dp_size=4, version="1.4.0"),
    ]
    for worker_id, client_version in (("worker-a", "0.1.0"), ("worker-b", "0.2.0")):
        stream = WorkerStream(hints)
        await stream.open(engines[0], worker_id=worker_id, client_version=client_version)
    for _ in range(2):
        await stream.enrich(make_request(engine_instance="start-2"), engines=engines[1:])
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    events = ("stream_opened", "engine_registered")
    lines = [line for line in _read_log(sidecar) if line["event"] in events]
    assert {line.pop("level") for line in lines} == {"info"}
    assert all(line.pop("timestamp") for line in lines)
    first = {"event": "engine_registered", "instance_id": "start-1", "dp_size": 8}
    first["tensorrt_llm_version"] = "1.3.0rc19"
    second = {"event": "engine_registered", "instance_id": "start-2", "dp_size": 4}
    second["tensorrt_llm_version"] = "1.4.0"
    assert lines == [
        {"event": "stream_opened", "worker_id": "worker-a", "client_version": "0.1.0"},
        {"worker_id": "worker-a", **first},
        {"event": "stream_opened", "worker_id": "worker-b", "client_version": "0.2.0"},
        {"worker_id": "worker-b", **first},
        {"worker_id": "worker-b", **second},
    ]


async def test_the_worker_client_names_itself_and_its_engine(
    start_sidecar_process: Start, open_channel: OpenChannel
) -> None:
    """In the log and in GetStats, once for each stream and engine."""
    sidecar = start_sidecar_process()
    with install(CONVERSATION_PARAMS):
        engine = EngineProfile.detect(FakeLLM(CONVERSATION_PARAMS, 4, router="conversation"))
    async with make_client(sidecar.target, worker_id="worker-a") as client:
        for _ in range(3):
            async with client.plan({}, phase=Phase.PREFILL, engine=engine) as plan:
                assert plan.decision.origin is Origin.SIDECAR
        stats = await get_stats(AdminStub(await open_channel(sidecar.target)))
    installed = version("routing-hint-sidecar")
    assert [(one.worker_id, one.client_version) for one in stats.streams] == [("worker-a", installed)]
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    _, opened, registered, *_ = _read_log(sidecar)
    assert (opened["event"], opened["worker_id"], opened["client_version"]) == (
        "stream_opened",
        "worker-a",
        installed,
    )
    assert (registered["event"], registered["tensorrt_llm_version"]) == (
        "engine_registered",
        CONVERSATION_PARAMS.version,
    )
    assert sum(line["event"] == "engine_registered" for line in _read_log(sidecar)) == 1


async def test_the_drain_has_a_deadline(start_sidecar_process: Start, open_channel: OpenChannel) -> None:
    """A stream that nobody reads does not keep the sidecar alive."""
    sidecar = start_sidecar_process("--drain-timeout-s", "0.2")
    deaf, other = await open_channel(sidecar.target), await open_channel(sidecar.target)
    await block_in_write(HintsStub(deaf).EnrichStream(), AdminStub(other))
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0


async def test_a_second_signal_ends_the_drain(
    start_sidecar_process: Start, open_channel: OpenChannel
) -> None:
    """An operator who insists does not wait for the deadline."""
    sidecar = start_sidecar_process("--drain-timeout-s", "3600")
    deaf, other = await open_channel(sidecar.target), await open_channel(sidecar.target)
    await block_in_write(HintsStub(deaf).EnrichStream(), AdminStub(other))
    sidecar.signal(signal.SIGTERM)

    async def is_draining() -> bool:
        reply = await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest())
        return reply.status == _NOT_SERVING

    await wait_until(is_draining, "health to change")
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0


async def test_no_id_tenant_or_header_is_logged(
    start_sidecar_process: Start, open_channel: OpenChannel, tmp_path: Path
) -> None:
    """In a run with good, bad and malformed requests, with every line that there is."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("operational: {logging: {level: debug, format: console, decision_sample_percent: 100}}")
    sidecar = start_sidecar_process("--policy", str(policy))
    channel = await open_channel(sidecar.target)
    hints = HintsStub(channel)
    good, bad = _make_secret_request(), _make_secret_request(known_rank=9)
    await hints.Enrich(good)
    await hints.Explain(service_pb2.ExplainRequest(request=good))
    for data in (bad.SerializeToString(), good.SerializeToString() + b"\x0a\x02\xff\xfe"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/routing_hints.v1.RoutingHintsService/Enrich")(data)
        assert _SECRET not in str(caught.value.details())
    stream = WorkerStream(hints)
    results = await stream.exchange(bad, finishes=[service_pb2.Finish(local_reason=_SECRET, seq=1)])
    assert _SECRET not in str(results)
    stream.close()
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    log = "".join(sidecar.lines)
    assert "decision_id" in log
    assert "sidecar_stopped" in log
    assert _SECRET not in log
    assert _TENANT not in log


async def test_tcp_is_served_beside_the_socket_on_the_port_that_the_log_names(
    start_sidecar_process: Start, open_channel: OpenChannel
) -> None:
    sidecar = start_sidecar_process("--listen", "tcp://127.0.0.1:0")
    (started,) = _read_log(sidecar)
    assert started["listen"][0] == f"unix://{sidecar.socket_path}"
    channel = await open_channel(started["listen"][1].removeprefix("tcp://"))
    assert (await HintsStub(channel).Enrich(_make_secret_request())).conversation_hash


def test_the_socket_that_a_killed_sidecar_leaves_is_replaced(start_sidecar_process: Start) -> None:
    first = start_sidecar_process()
    first.signal(signal.SIGKILL)
    first.wait()
    assert first.socket_path.exists()
    assert start_sidecar_process().process.poll() is None


def test_the_socket_of_a_running_sidecar_is_refused_and_left_alone(
    start_sidecar_process: Start, run_command: RunCommand
) -> None:
    first = start_sidecar_process()
    done = run_command("serve", "--listen", f"unix://{first.socket_path}")
    assert done.returncode == 2
    assert done.stderr == f"listen: unix://{first.socket_path}: another process serves this socket\n"
    assert first.socket_path.exists()


def test_a_taken_port_is_refused_in_words(run_command: RunCommand) -> None:
    """Without grpc's own lines."""
    with socket.create_server(("127.0.0.1", 0)) as live:
        address = f"tcp://127.0.0.1:{live.getsockname()[1]}"
        done = run_command("serve", "--listen", address)
    assert (done.returncode, done.stderr) == (2, f"listen: {address}: the port is taken\n")


def test_a_missing_folder_of_the_socket_is_refused_and_not_made(
    run_command: RunCommand, socket_folder: Path
) -> None:
    done = run_command("serve", "--listen", f"unix://{socket_folder}/absent/s")
    assert done.returncode == 2
    assert done.stderr.endswith(f": the folder {socket_folder}/absent does not exist\n")


@pytest.mark.parametrize("path", sorted(_POLICIES.iterdir()), ids=lambda path: path.stem)
def test_a_bad_policy_keeps_the_sidecar_from_starting(
    run_command: RunCommand, path: Path, socket_folder: Path
) -> None:
    """Each error is a line, without a traceback; the exit code is 2."""
    done = run_command("serve", "--listen", f"unix://{socket_folder}/s", "--policy", str(path))
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert all(": " in line for line in done.stderr.splitlines())


def test_all_configuration_errors_come_at_once(run_command: RunCommand, socket_folder: Path) -> None:
    """Addresses, options, policy and what is in the way of binding, in one run."""
    done = run_command(
        "serve",
        "--drain-timeout-s",
        "soon",
        ROUTING_HINTS_LISTEN=f"tcp://0.0.0.0:1,unix://{socket_folder}/absent/s",
        ROUTING_HINTS_POLICY=str(_POLICIES / "all_at_once.yaml"),
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"listen: unix://{socket_folder}/absent/s: ")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        "listen",
        "drain-timeout-s",
        "operational.mode",
        "operational.rollout_percent",
        "operational.placement.phases.1",
        "identity.scope",
        "identity.prefer",
        "listen",
    ]


def test_the_version_is_shown_with_the_name_of_the_distribution(run_command: RunCommand) -> None:
    done = run_command("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("routing-hint-sidecar, version ")
