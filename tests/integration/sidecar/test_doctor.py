"""`python -m worker_client doctor`, with a real sidecar and with none, on engines of several releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from examples.fake_engine import CONVERSATION_PARAMS, RANK_ONLY, Release, install
from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2_grpc
from tests.support.sidecar import SidecarProcess
from worker_client.__main__ import main

PINS = {"kv_cache_routing_conversation_affinity": True}
ENGINE: dict[str, Any] = {
    "enable_attention_dp": True,
    "tensor_parallel_size": 4,
    "attention_dp_config": PINS,
}


class DoctorHarness:
    """Runs the command in an image of one release."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys

    def __call__(
        self, engine_args: dict[str, Any] | None, *options: str, release: Release = CONVERSATION_PARAMS
    ) -> tuple[int, str]:
        """Returns the exit code and what was printed."""
        files: list[str] = []
        if engine_args is not None:
            path = self._folder / "engine.json"
            path.write_text(json.dumps(engine_args))
            files = ["--engine-args", str(path)]
        with install(release):
            code = main(["doctor", "--phase", "prefill", *files, *options])
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err


@pytest.fixture
def doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> DoctorHarness:
    """The command, for a worker without a sidecar and without settings."""
    for name in ("ROUTING_HINTS_AFFINITY", "ROUTING_HINTS_RANK_SOURCE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.replace("ROUTING_HINTS", "DYN_ENGINE_CONV"), raising=False)
    monkeypatch.setenv("ROUTING_HINTS_TARGET", f"unix://{tmp_path}/missing.sock")
    return DoctorHarness(tmp_path, capsys)


@pytest.fixture
def serve(
    start_sidecar_process: Callable[..., SidecarProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Starts the worker's sidecar with a policy."""

    def start(policy: str) -> None:
        path = tmp_path / "policy.yaml"
        path.write_text(policy)
        sidecar = start_sidecar_process("--policy", str(path))
        monkeypatch.setenv("ROUTING_HINTS_TARGET", f"unix://{sidecar.socket_path}")

    return start


def test_affinity_that_can_act_is_exit_code_zero(doctor: DoctorHarness, serve: Callable[[str], None]) -> None:
    """There is nothing to change, and the text says who owns the rank."""
    serve("")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "id attached, rank withhold" in text
    assert "the engine's own router, on prefill" in text
    assert "change:" not in text


def test_rank_source_router_names_the_router_as_owner_of_the_rank(
    doctor: DoctorHarness, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("")
    monkeypatch.setenv("DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE", "dynamo")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "router (DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE)" in text
    assert "id attached, rank forward" in text


def test_affinity_can_act_in_a_partial_rollout(doctor: DoctorHarness, serve: Callable[[str], None]) -> None:
    serve("operational: {rollout_percent: 20}")
    assert doctor(ENGINE)[0] == 0


@pytest.mark.parametrize(
    ("policy", "token", "change"),
    [
        ("operational: {mode: shadow}", "mode-shadow", "set mode: on"),
        ("operational: {mode: 'off'}", "mode-off", "set mode: on"),
        ("operational: {rollout_percent: 0}", "outside-rollout", "raise rollout_percent"),
    ],
)
def test_a_policy_that_does_not_act_is_named_with_the_change(
    doctor: DoctorHarness, serve: Callable[[str], None], policy: str, token: str, change: str
) -> None:
    serve(policy)
    code, text = doctor(ENGINE)
    assert code == 1
    assert token in text
    assert change in text


def test_an_unavailable_sidecar_is_named_and_the_local_rule_shown(doctor: DoctorHarness) -> None:
    """That rule attaches the id; the exit code is 1 all the same, since the worker lacks its sidecar."""
    code, text = doctor(ENGINE)
    assert code == 1
    assert "unavailable (socket-missing); the local rule decides" in text
    assert "id attached, rank withhold" in text
    assert "mount the folder of its socket" in text


@pytest.mark.parametrize(
    ("engine_args", "problem"),
    [
        (None, "the engine's arguments are unknown"),
        ({**ENGINE, "enable_attention_dp": False}, "but attention DP is off"),
        ({**ENGINE, "backend": "tensorrt"}, "only on the pytorch backend"),
        ({**ENGINE, "tensor_parallel_size": 1}, "but there is one rank"),
        (
            {**ENGINE, "attention_dp_config": {**PINS, "enable_kv_cache_aware_routing": True}},
            "are both set; the former wins",
        ),
        (
            {
                **ENGINE,
                "attention_dp_config": {"enable_kv_cache_aware_routing": True},
                "kv_cache_config": {"enable_block_reuse": False},
            },
            "needs block reuse, which is off",
        ),
        ({**ENGINE, "attention_dp_config": {"affinity": True}}, "has no attention_dp_config.affinity"),
    ],
)
def test_a_contradiction_within_the_config_of_the_engine_is_named(
    doctor: DoctorHarness, engine_args: dict[str, Any] | None, problem: str
) -> None:
    code, text = doctor(engine_args)
    assert code == 1
    assert problem in text


def test_a_release_without_a_parameter_for_ids_is_named(doctor: DoctorHarness) -> None:
    """The config demands what the installed release does not have."""
    code, text = doctor(ENGINE, release=RANK_ONLY)
    assert code == 1
    assert "has no attention_dp_config.kv_cache_routing_conversation_affinity" in text
    assert "but no id can be sent" in text
    assert "dialect-cannot-carry-id" in text


@pytest.mark.parametrize(
    ("environment", "engine_args", "problem"),
    [
        ({"ROUTING_HINTS_AFFINITY": "off"}, ENGINE, "affinity is off"),
        (
            {"ROUTING_HINTS_AFFINITY": "auto", "DYN_ENGINE_CONV_AFFINITY": "true"},
            ENGINE,
            "ROUTING_HINTS_AFFINITY=auto and DYN_ENGINE_CONV_AFFINITY=true differ",
        ),
        (
            {
                "ROUTING_HINTS_RANK_SOURCE": "engine",
                "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": "dynamo",
            },
            ENGINE,
            "ROUTING_HINTS_RANK_SOURCE=engine and DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE=dynamo differ",
        ),
        (
            {"ROUTING_HINTS_AFFINITY": "on"},
            {**ENGINE, "attention_dp_config": {}},
            "affinity is on, but the engine's attention_dp_config does not set",
        ),
        ({"ROUTING_HINTS_RANK_SOURCE": "sidecar"}, ENGINE, "does not record an explicit first rank"),
    ],
)
def test_a_contradiction_between_environment_and_engine_is_named(
    doctor: DoctorHarness,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    engine_args: dict[str, Any],
    problem: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, text = doctor(engine_args)
    assert code == 1
    assert problem in text


def test_equal_settings_of_both_kinds_are_no_contradiction(
    doctor: DoctorHarness, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("")
    monkeypatch.setenv("ROUTING_HINTS_AFFINITY", "on")
    monkeypatch.setenv("DYN_ENGINE_CONV_AFFINITY", "true")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "differ" not in text


def test_options_of_the_worker_complete_the_file(doctor: DoctorHarness, serve: Callable[[str], None]) -> None:
    """Dynamo's workers get the sizes on their command line and the rest from a file."""
    serve("")
    code, text = doctor({"attention_dp_config": PINS}, "--tensor-parallel-size", "8", "--enable-attention-dp")
    assert code == 0
    assert "attention-DP ranks        8" in text


def test_bad_settings_are_exit_code_two(doctor: DoctorHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTING_HINTS_AFFINITY", "maybe")
    monkeypatch.setenv("ROUTING_HINTS_RANK_SOURCE", "nobody")
    code, text = doctor(ENGINE)
    assert code == 2
    assert "ROUTING_HINTS_AFFINITY: must be" in text
    assert "ROUTING_HINTS_RANK_SOURCE: must be" in text


@pytest.mark.parametrize("content", [None, "- 1", "{"], ids=["missing", "list", "broken"])
def test_unusable_engine_file_is_exit_code_two(
    doctor: DoctorHarness, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "args.yaml"
    if content is not None:
        path.write_text(content)
    code, text = doctor(None, "--engine-args", str(path))
    assert code == 2
    assert str(path) in text


@pytest.fixture
def sidecar_with_older_policy(
    doctor: DoctorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A server that responds as a sidecar whose new policy file is bad; it has no Explain."""

    class Admin(admin_pb2_grpc.RoutingHintsAdminServiceServicer):  # type: ignore[misc]
        def GetPolicy(self, request: object, context: object) -> admin_pb2.GetPolicyResponse:  # noqa: N802
            return admin_pb2.GetPolicyResponse(
                revision="old", origin="file", last_error="mode: is not a mode"
            )

    server = grpc.server(ThreadPoolExecutor(1))
    admin_pb2_grpc.add_RoutingHintsAdminServiceServicer_to_server(Admin(), server)
    service_pb2_grpc.add_RoutingHintsServiceServicer_to_server(
        service_pb2_grpc.RoutingHintsServiceServicer(), server
    )
    server.add_insecure_port(f"unix:{tmp_path}/old.sock")
    server.start()
    monkeypatch.setenv("ROUTING_HINTS_TARGET", f"unix://{tmp_path}/old.sock")
    yield
    server.stop(grace=None).wait()


@pytest.mark.usefixtures("sidecar_with_older_policy")
def test_a_rejected_policy_file_is_named(doctor: DoctorHarness) -> None:
    code, text = doctor(ENGINE)
    assert code == 1
    assert "keeps an older policy: mode: is not a mode" in text
    assert "unavailable (grpc-unimplemented)" in text
