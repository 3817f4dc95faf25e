"""The image alone: that it serves, how it is locked down, how it stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.container.conftest import IMAGE, USER_ID, Container, inspect, podman
from tests.support.messages import CONVERSATION_HASH, HintsStub, make_request

StartContainer = Callable[..., Container]
_READY_TIMEOUT_S = 60.0


@pytest.fixture
def container(start_container: StartContainer) -> Container:
    """One that serves."""
    started = start_container()
    _await_ready(started.socket_target)
    return started


def _await_ready(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        grpc.channel_ready_future(channel).result(timeout=_READY_TIMEOUT_S)


def _read_status(container: Container) -> dict[str, str]:
    process_id = inspect(container.name)["State"]["Pid"]
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("target", ["socket_target", "tcp_target"])
def test_it_decides_over_the_socket_in_a_shared_volume_and_over_tcp(
    container: Container, target: str
) -> None:
    with grpc.insecure_channel(getattr(container, target)) as channel:
        decision = HintsStub(channel).Enrich(make_request())
    assert decision.conversation_hash == CONVERSATION_HASH


def test_it_runs_without_root_capabilities_or_new_privileges(container: Container) -> None:
    """As the kernel sees the process, not as the image says."""
    status = _read_status(container)
    assert set(status["Uid"].split()) == {str(USER_ID)}
    assert set(status["Gid"].split()) == {str(USER_ID)}
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize("path", ["/x", "/tmp/x", "/opt/routing-hint-sidecar/x"])  # noqa: S108, in the container
def test_it_needs_no_writable_root(container: Container, path: str) -> None:
    """Nothing but the socket's folder can be written, and it serves."""
    program = f"open({path!r}, 'w')"
    done = podman("exec", "--user", "0", container.name, "python3", "-c", program, check=False)
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr


def test_its_health_check_is_0_while_it_serves_and_1_where_nobody_does(container: Container) -> None:
    assert podman("healthcheck", "run", container.name, check=False).returncode == 0
    elsewhere = ("exec", "--env", "ROUTING_HINTS_LISTEN=unix:///run/routing-hints/absent.sock")
    probe = ("routing-hint-sidecar", "probe", "--timeout-s", "1")
    assert podman(*elsewhere, container.name, *probe, check=False).returncode == 1


def test_a_stop_changes_health_first_and_ends_well_within_the_drain_time(container: Container) -> None:
    """A watcher of health sees NOT_SERVING before its call ends."""
    with grpc.insecure_channel(container.tcp_target) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(call).status == health_pb2.HealthCheckResponse.SERVING
        stopping = threading.Thread(target=podman, args=("stop", "--time", "10", container.name))
        stopping.start()
        assert next(call).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        stopping.join()
    # podman kills what is late, and 137 would say so.
    assert inspect(container.name)["State"]["ExitCode"] == 0
    assert not (container.folder / "sidecar.sock").exists()


def test_a_bad_configuration_is_exit_code_2_with_every_problem_in_the_log(
    start_container: StartContainer,
) -> None:
    container = start_container(arguments=("serve", "--policy", "/absent.yaml", "--drain-timeout-s", "x"))
    assert podman("wait", container.name).stdout.strip() == "2"
    log = podman("logs", container.name).stderr
    assert "policy: /absent.yaml: No such file or directory" in log
    assert "drain-timeout-s: Input should be a valid number" in log


def test_it_holds_the_sidecar_and_nothing_else() -> None:
    """No pip and no tracing."""
    program = (
        "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions(path="
        "[__import__('sysconfig').get_path('purelib')])))"
    )
    python = "/opt/routing-hint-sidecar/bin/python"
    listed = podman("run", "--rm", "--entrypoint", python, IMAGE, "-c", program).stdout.split()
    assert {"routing-hint-sidecar", "grpcio", "aiohttp", "uvloop"} <= set(listed)
    assert not [name for name in listed if name.startswith(("pip", "setuptools", "opentelemetry", "pytest"))]
    image = inspect(IMAGE)
    config = image["Config"]
    assert (config["User"], config["StopSignal"]) == ("65532:65532", "SIGTERM")
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert image["Healthcheck"]["Test"] == ["CMD", "routing-hint-sidecar", "probe"]
