"""The client's settings: what the environment may say, and how it is told off."""

from __future__ import annotations

import pytest

from worker_client import Affinity, ClientConfig, ConfigurationError, RankSource
from worker_client._config import grpc_target


def test_empty_environment_gives_the_documented_defaults() -> None:
    """Nothing needs to be set."""
    config = ClientConfig.from_env({})
    assert config.target == "unix:///run/routing-hints/sidecar.sock"
    assert config.affinity is Affinity.AUTO
    assert config.rank_source is RankSource.UNSPECIFIED
    assert (config.known_timeout_s, config.unknown_timeout_s) == (0.025, 0.2)
    assert config.memory_entries == 65_536
    assert config.local_rule is True


def test_every_setting_is_read() -> None:
    """Each variable sets its field, milliseconds become seconds."""
    config = ClientConfig.from_env(
        {
            "ROUTING_HINTS_TARGET": "tcp://127.0.0.1:50051",
            "ROUTING_HINTS_AFFINITY": "on",
            "ROUTING_HINTS_RANK_SOURCE": "sidecar",
            "ROUTING_HINTS_KNOWN_TIMEOUT_MS": "10",
            "ROUTING_HINTS_UNKNOWN_TIMEOUT_MS": "1500",
            "ROUTING_HINTS_WORKER_ID": "worker-7",
        }
    )
    assert config == ClientConfig(
        target="tcp://127.0.0.1:50051",
        affinity=Affinity.ON,
        rank_source=RankSource.SIDECAR,
        known_timeout_s=0.01,
        unknown_timeout_s=1.5,
        worker_id="worker-7",
    )


@pytest.mark.parametrize(
    ("ours", "dynamos", "affinity"),
    [
        ("", "true", Affinity.ON),
        ("", "1", Affinity.ON),
        ("", "YES", Affinity.ON),
        ("", "on", Affinity.ON),
        ("", "false", Affinity.AUTO),
        ("", "0", Affinity.AUTO),
        ("", "", Affinity.AUTO),
        ("off", "true", Affinity.OFF),
        ("auto", "true", Affinity.AUTO),
        ("On", "false", Affinity.ON),
    ],
)
def test_our_gate_wins_over_dynamos(ours: str, dynamos: str, affinity: Affinity) -> None:
    """Dynamo's variable is read only where ours is unset, and can only switch on."""
    environ = {"ROUTING_HINTS_AFFINITY": ours, "DYN_ENGINE_CONV_AFFINITY": dynamos}
    assert ClientConfig.from_env(environ).affinity is affinity


@pytest.mark.parametrize(
    ("ours", "dynamos", "source"),
    [
        ("", "", RankSource.UNSPECIFIED),
        ("", "engine", RankSource.ENGINE),
        ("", "dynamo", RankSource.ROUTER),
        ("router", "engine", RankSource.ROUTER),
        ("ENGINE", "dynamo", RankSource.ENGINE),
        ("sidecar", "", RankSource.SIDECAR),
    ],
)
def test_our_rank_source_wins_over_dynamos(ours: str, dynamos: str, source: RankSource) -> None:
    """Dynamo's `dynamo` is our `router`."""
    environ = {
        "ROUTING_HINTS_RANK_SOURCE": ours,
        "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": dynamos,
    }
    assert ClientConfig.from_env(environ).rank_source is source


def test_all_faults_of_the_environment_are_named_at_once() -> None:
    """One start shows everything that is wrong, by the variable's name."""
    environ = {
        "ROUTING_HINTS_TARGET": "run/sidecar.sock",
        "ROUTING_HINTS_AFFINITY": "maybe",
        "ROUTING_HINTS_RANK_SOURCE": "engine",
        "ROUTING_HINTS_KNOWN_TIMEOUT_MS": "-1",
        "ROUTING_HINTS_UNKNOWN_TIMEOUT_MS": "nan",
        "ROUTING_HINTS_WORKER_ID": "w" * 257,
    }
    with pytest.raises(ConfigurationError) as caught:
        ClientConfig.from_env(environ)
    assert [fault.partition(" ")[0] for fault in caught.value.faults] == [
        "ROUTING_HINTS_AFFINITY",
        "ROUTING_HINTS_KNOWN_TIMEOUT_MS",
        "ROUTING_HINTS_UNKNOWN_TIMEOUT_MS",
        "ROUTING_HINTS_TARGET",
        "ROUTING_HINTS_WORKER_ID",
    ]


def test_malformed_rank_source_of_dynamo_is_named() -> None:
    """A typo in Dynamo's variable is no silent default."""
    with pytest.raises(ConfigurationError, match="DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE"):
        ClientConfig.from_env({"DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": "router"})


def test_all_faults_of_a_config_built_by_hand_are_named_at_once() -> None:
    """What the stream could never use is refused where it is written, not hours later in a task."""
    with pytest.raises(ConfigurationError) as caught:
        ClientConfig(
            target="localhost:50051",
            known_timeout_s=0,
            unknown_timeout_s=float("inf"),
            memory_entries=-1,
            worker_id="worker-\udcff",
        )
    assert [fault.partition(" ")[0] for fault in caught.value.faults] == [
        "target",
        "known_timeout_s",
        "unknown_timeout_s",
        "memory_entries",
        "worker_id",
    ]


@pytest.mark.parametrize(
    ("target", "spelled"),
    [
        ("unix:///run/a.sock", "unix:/run/a.sock"),
        ("tcp://127.0.0.1:50051", "127.0.0.1:50051"),
        ("tcp://[::1]:50051", "[::1]:50051"),
    ],
)
def test_targets_are_spelled_as_grpc_wants_them(target: str, spelled: str) -> None:
    """One spelling for users, gRPC's own towards it."""
    assert grpc_target(target) == spelled


@pytest.mark.parametrize(
    "target", ["", "unix:/run/a.sock", "unix://a.sock", "tcp://:1", "tcp://h", "http://h:1"]
)
def test_other_targets_are_refused(target: str) -> None:
    """A malformed target is a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  its text is the target and nothing else
        grpc_target(target)
