"""The real process: command line, socket, signals, log."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from tests.support.command import RunCommand
from tests.support.sidecar import SidecarProcess, block_in_write

_POLICIES = Path(__file__).parents[1] / "data" / "policies"
_SECRET = "session-that-nobody-may-read"  # noqa: S105, no password
_SERVING = health_pb2.HealthCheckResponse.SERVING
_TENANT = "tenant-that-nobody-may-read"

Start = Callable[..., SidecarProcess]


@asynccontextmanager
async def _open_two_channels(
    sidecar: SidecarProcess,
) -> AsyncIterator[tuple[grpc.aio.Channel, grpc.aio.Channel]]:
    """Two connections; grpc shares one between channels whose options are equal."""
    async with (
        grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 1)]) as first,
        grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 2)]) as second,
    ):
        yield first, second


def _secret_request() -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(
        request_id="r",
        phase=types_pb2.PHASE_PREFILL,
        tenant=_TENANT,
        identity=types_pb2.Identity(
            conversation_id=_SECRET,
            agent_context=types_pb2.AgentContext(session_id=_SECRET, parent_session_id=_SECRET),
            headers={"x-session-id": _SECRET, _SECRET: _SECRET},
            metadata={_SECRET: _SECRET},
            annotations=[_SECRET],
        ),
        engine=types_pb2.EngineProfile(dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS, dp_size=4),
    )


def test_the_socket_is_for_owner_and_group(start_sidecar_process: Start) -> None:
    """Whatever the umask, the socket has mode 0660."""
    path = start_sidecar_process().socket_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_an_open_stream(start_sidecar_process: Start, number: signal.Signals) -> None:
    """Health flips before the stream ends with UNAVAILABLE; exit code 0, socket gone, both changes logged."""
    sidecar = start_sidecar_process()
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        stream = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()
        item = service_pb2.EnrichItem(seq=1, request=_secret_request())
        await stream.write(service_pb2.EnrichStreamRequest(items=[item]))
        assert len((await stream.read()).results) == 1
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        sidecar.signal(number)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    assert sidecar.wait() == 0
    assert not sidecar.socket_path.exists()
    events = [json.loads(line)["event"] for line in sidecar.lines]
    assert events == ["sidecar_started", "sidecar_draining", "sidecar_stopped"]


async def test_the_drain_has_a_deadline(start_sidecar_process: Start) -> None:
    """A stream that nobody reads does not keep the sidecar alive."""
    sidecar = start_sidecar_process("--drain-timeout-s", "0.2")
    async with _open_two_channels(sidecar) as (deaf, other):
        stream = service_pb2_grpc.RoutingHintsServiceStub(deaf).EnrichStream()
        await block_in_write(stream, other)
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0


async def test_a_second_signal_ends_the_drain(start_sidecar_process: Start) -> None:
    """An operator who insists does not wait for the deadline."""
    sidecar = start_sidecar_process("--drain-timeout-s", "3600")
    async with _open_two_channels(sidecar) as (deaf, other):
        stream = service_pb2_grpc.RoutingHintsServiceStub(deaf).EnrichStream()
        await block_in_write(stream, other)
        sidecar.signal(signal.SIGTERM)
        health = health_pb2_grpc.HealthStub(other)
        while (await health.Check(health_pb2.HealthCheckRequest())).status == _SERVING:
            pass
        sidecar.signal(signal.SIGTERM)
        assert sidecar.wait() == 0


async def test_no_raw_id_is_logged(start_sidecar_process: Start, tmp_path: Path) -> None:
    """A run with good, bad and malformed requests leaves no id, tenant or header in the log."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("operational: {logging: {level: debug, format: console}}")
    sidecar = start_sidecar_process("--policy", str(policy))
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        stub = service_pb2_grpc.RoutingHintsServiceStub(channel)
        await stub.Enrich(_secret_request())
        await stub.Explain(service_pb2.ExplainRequest(request=_secret_request()))
        bad = _secret_request()
        bad.known_rank = 9
        for data in (bad.SerializeToString(), _secret_request().SerializeToString() + b"\x0a\x02\xff\xfe"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/routing_hints.v1.RoutingHintsService/Enrich")(data)
            assert _SECRET not in str(caught.value.details())
        stream = stub.EnrichStream()
        await stream.write(
            service_pb2.EnrichStreamRequest(
                items=[service_pb2.EnrichItem(seq=1, request=bad)],
                finishes=[service_pb2.Finish(local_reason=_SECRET, seq=1)],
            )
        )
        assert _SECRET not in str(await stream.read())
        stream.cancel()
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0
    log = "".join(sidecar.lines)
    assert "sidecar_stopped" in log
    assert _SECRET not in log
    assert _TENANT not in log


async def test_tcp_is_served_when_asked_for(start_sidecar_process: Start) -> None:
    """Beside the socket, on the port that the log names."""
    sidecar = start_sidecar_process("--listen", "tcp://127.0.0.1:0")
    started = json.loads(sidecar.lines[-1])
    assert started["listen"][0] == f"unix://{sidecar.socket_path}"
    async with grpc.aio.insecure_channel(started["listen"][1].removeprefix("tcp://")) as channel:
        answer = await service_pb2_grpc.RoutingHintsServiceStub(channel).Enrich(_secret_request())
    assert answer.conversation_hash


def test_a_killed_sidecars_socket_is_replaced(start_sidecar_process: Start) -> None:
    """What `kill -9` leaves behind does not keep the next one from starting."""
    first = start_sidecar_process()
    first.signal(signal.SIGKILL)
    first.wait()
    assert first.socket_path.exists()
    assert start_sidecar_process().process.poll() is None


def test_a_live_sidecars_socket_is_refused(start_sidecar_process: Start, run_command: RunCommand) -> None:
    """The second process says so and leaves the first alone."""
    first = start_sidecar_process()
    done = run_command("serve", "--listen", f"unix://{first.socket_path}")
    assert done.returncode == 2
    assert done.stderr == f"listen: unix://{first.socket_path}: another process serves this socket\n"
    assert first.socket_path.exists()


def test_a_taken_port_is_refused(run_command: RunCommand) -> None:
    """The message says so in words, without grpc's own lines."""
    with socket.create_server(("127.0.0.1", 0)) as live:
        address = f"tcp://127.0.0.1:{live.getsockname()[1]}"
        done = run_command("serve", "--listen", address)
    assert (done.returncode, done.stderr) == (2, f"listen: {address}: the port is taken\n")


def test_a_missing_folder_is_refused(run_command: RunCommand, socket_folder: Path) -> None:
    """The folder of the socket is not made silently."""
    done = run_command("serve", "--listen", f"unix://{socket_folder}/absent/s")
    assert done.returncode == 2
    assert done.stderr.endswith(f": the folder {socket_folder}/absent does not exist\n")


@pytest.mark.parametrize("path", sorted(_POLICIES.iterdir()), ids=lambda path: path.stem)
def test_a_bad_policy_keeps_the_sidecar_from_starting(
    run_command: RunCommand, path: Path, socket_folder: Path
) -> None:
    """Each fault is a line, no traceback, exit code 2."""
    done = run_command("serve", "--listen", f"unix://{socket_folder}/s", "--policy", str(path))
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert all(": " in line for line in done.stderr.splitlines())


def test_all_faults_come_at_once(run_command: RunCommand, socket_folder: Path) -> None:
    """Addresses, options, policy and what stands in the way, in one run."""
    done = run_command(
        "serve",
        "--drain-timeout-s",
        "soon",
        ROUTING_HINTS_LISTEN=f"tcp://0.0.0.0:1,unix://{socket_folder}/absent/s",
        ROUTING_HINTS_POLICY=str(_POLICIES / "all_at_once.yaml"),
    )
    assert done.returncode == 2
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


def test_the_version_is_shown(run_command: RunCommand) -> None:
    """`--version` names distribution and version."""
    done = run_command("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("routing-hint-sidecar, version ")
