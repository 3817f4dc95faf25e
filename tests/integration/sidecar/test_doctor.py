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


class Doctor:
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
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """The command, for a worker without a sidecar and without settings."""
    for name in ("ROUTING_HINTS_AFFINITY", "ROUTING_HINTS_RANK_SOURCE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.replace("ROUTING_HINTS", "DYN_ENGINE_CONV"), raising=False)
    monkeypatch.setenv("ROUTING_HINTS_TARGET", f"unix://{tmp_path}/missing.sock")
    return Doctor(tmp_path, capsys)


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


def test_affinity_that_can_act_is_exit_code_zero(doctor: Doctor, serve: Callable[[str], None]) -> None:
    """Engine, settings and sidecar agree: nothing to change, and it says who owns the rank."""
    serve("")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "id attached, rank withhold" in text
    assert "the engine's own router, on prefill" in text
    assert "change:" not in text


def test_rank_source_router_names_the_router_as_owner(
    doctor: Doctor, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id goes out with the router's rank where the operator says that the engine records it."""
    serve("")
    monkeypatch.setenv("DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE", "dynamo")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "router (DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE)" in text
    assert "id attached, rank forward" in text


def test_partial_rollout_can_act(doctor: Doctor, serve: Callable[[str], None]) -> None:
    """Some conversations are within the rollout, so affinity can act for them."""
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
def test_policy_that_does_not_act_is_named(
    doctor: Doctor, serve: Callable[[str], None], policy: str, token: str, change: str
) -> None:
    """The sidecar's policy alone keeps affinity from acting, and the change is in the policy."""
    serve(policy)
    code, text = doctor(ENGINE)
    assert code == 1
    assert token in text
    assert change in text


def test_silent_sidecar_is_named_and_the_local_rule_shown(doctor: Doctor) -> None:
    """Without a sidecar the worker's own rule still attaches the id, and the exit code says what is wrong."""
    code, text = doctor(ENGINE)
    assert code == 1
    assert "does not answer (socket-missing); the worker's own rule decides" in text
    assert "id attached, rank withhold" in text
    assert "mount the folder of its socket" in text


@pytest.mark.parametrize(
    ("engine_args", "problem"),
    [
        (None, "the engine's arguments are not known here"),
        ({**ENGINE, "enable_attention_dp": False}, "but attention DP is off"),
        ({**ENGINE, "backend": "tensorrt"}, "on the pytorch backend alone"),
        ({**ENGINE, "tensor_parallel_size": 1}, "and there is one"),
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
def test_contradiction_within_the_engine_config_is_named(
    doctor: Doctor, engine_args: dict[str, Any] | None, problem: str
) -> None:
    """Whatever keeps the engine's router from doing what its config asks for is said, with a change."""
    code, text = doctor(engine_args)
    assert code == 1
    assert problem in text


def test_release_that_cannot_be_told_a_conversation_is_named(doctor: Doctor) -> None:
    """The config asks for what the installed release does not have."""
    code, text = doctor(ENGINE, release=RANK_ONLY)
    assert code == 1
    assert "has no attention_dp_config.kv_cache_routing_conversation_affinity" in text
    assert "can't be told any" in text
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
def test_contradiction_between_environment_and_engine_is_named(
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    engine_args: dict[str, Any],
    problem: str,
) -> None:
    """Settings that lose, can't act or differ from Dynamo's own are said."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, text = doctor(engine_args)
    assert code == 1
    assert problem in text


def test_equal_settings_of_both_kinds_are_no_contradiction(
    doctor: Doctor, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`on` here and `true` there mean the same."""
    serve("")
    monkeypatch.setenv("ROUTING_HINTS_AFFINITY", "on")
    monkeypatch.setenv("DYN_ENGINE_CONV_AFFINITY", "true")
    code, text = doctor(ENGINE)
    assert code == 0
    assert "differ" not in text


def test_options_of_the_worker_complete_the_file(doctor: Doctor, serve: Callable[[str], None]) -> None:
    """Dynamo's workers get the sizes on their command line and the rest from a file."""
    serve("")
    code, text = doctor({"attention_dp_config": PINS}, "--tensor-parallel-size", "8", "--enable-attention-dp")
    assert code == 0
    assert "attention-DP ranks        8" in text


def test_bad_settings_are_exit_code_two(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """All faults of the environment are said, and nothing else is done."""
    monkeypatch.setenv("ROUTING_HINTS_AFFINITY", "maybe")
    monkeypatch.setenv("ROUTING_HINTS_RANK_SOURCE", "nobody")
    code, text = doctor(ENGINE)
    assert code == 2
    assert "ROUTING_HINTS_AFFINITY must be" in text
    assert "ROUTING_HINTS_RANK_SOURCE must be" in text


@pytest.mark.parametrize("content", [None, "- 1", "{"], ids=["missing", "list", "broken"])
def test_unusable_engine_file_is_exit_code_two(doctor: Doctor, tmp_path: Path, content: str | None) -> None:
    """A file that is not there or holds no mapping is named."""
    path = tmp_path / "args.yaml"
    if content is not None:
        path.write_text(content)
    code, text = doctor(None, "--engine-args", str(path))
    assert code == 2
    assert str(path) in text


@pytest.fixture
def sidecar_with_older_policy(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A server that says of itself what a sidecar says whose new policy file is bad; it explains nothing."""

    class Admin(admin_pb2_grpc.RoutingHintsAdminServiceServicer):  # type: ignore[misc]
        def GetPolicy(self, request: object, context: object) -> admin_pb2.GetPolicyResponse:  # noqa: N802
            return admin_pb2.GetPolicyResponse(revision="old", origin="file", last_error="mode: is no mode")

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
def test_policy_file_that_was_refused_is_named(doctor: Doctor) -> None:
    """A sidecar that keeps an older policy says so, and one that can't explain does not answer."""
    code, text = doctor(ENGINE)
    assert code == 1
    assert "keeps an older policy: mode: is no mode" in text
    assert "does not answer (grpc-unimplemented)" in text
