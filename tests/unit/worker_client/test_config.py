from __future__ import annotations

import pytest

from worker_client import Affinity, ClientConfig, ConfigurationError, RankSource


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    config = ClientConfig.from_env({})
    assert config.target == "unix:///run/routing-hints/sidecar.sock"
    assert config.affinity is Affinity.AUTO
    assert config.rank_source is RankSource.UNSPECIFIED
    assert (config.known_timeout_s, config.unknown_timeout_s) == (0.025, 0.2)
    assert config.memory_entries == 65_536
    assert config.local_rule is True


def test_every_variable_sets_its_field_and_milliseconds_become_seconds() -> None:
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


@pytest.mark.parametrize("target", ["unix:/run/a.sock", "unix:///run/a.sock", "tcp://[::1]:50051"])
def test_a_target_is_taken_in_every_spelling_that_the_sidecar_takes(target: str) -> None:
    assert ClientConfig.from_env({"ROUTING_HINTS_TARGET": target}).target == target


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
def test_dynamos_variable_is_read_where_ours_is_unset_and_can_only_enable(
    ours: str, dynamos: str, affinity: Affinity
) -> None:
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
def test_our_rank_source_wins_over_dynamos_whose_dynamo_is_our_router(
    ours: str, dynamos: str, source: RankSource
) -> None:
    environ = {
        "ROUTING_HINTS_RANK_SOURCE": ours,
        "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": dynamos,
    }
    assert ClientConfig.from_env(environ).rank_source is source


def test_all_problems_of_the_environment_are_named_at_once() -> None:
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
    assert caught.value.problems == (
        ("ROUTING_HINTS_AFFINITY", "must be auto, on or off"),
        ("ROUTING_HINTS_KNOWN_TIMEOUT_MS", "must be a positive number"),
        ("ROUTING_HINTS_UNKNOWN_TIMEOUT_MS", "must be a positive number"),
        ("ROUTING_HINTS_TARGET", "must be unix:///path or tcp://host:port"),
        ("ROUTING_HINTS_WORKER_ID", "must be text of at most 256 bytes"),
    )
    assert "ROUTING_HINTS_AFFINITY: must be auto, on or off; ROUTING_HINTS_KNOWN" in str(caught.value)


def test_a_malformed_rank_source_of_dynamo_is_a_problem_and_not_a_silent_default() -> None:
    with pytest.raises(ConfigurationError, match="DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE"):
        ClientConfig.from_env({"DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE": "router"})


def test_all_problems_of_a_config_built_by_hand_are_named_at_once() -> None:
    """What the stream could never use is refused where it is written, not hours later in a task."""
    with pytest.raises(ConfigurationError) as caught:
        ClientConfig(
            target="localhost:50051",
            known_timeout_s=0,
            unknown_timeout_s=float("inf"),
            memory_entries=-1,
            worker_id="worker-\udcff",
        )
    assert caught.value.problems == (
        ("target", "must be unix:///path or tcp://host:port"),
        ("known_timeout_s", "must be a positive number"),
        ("unknown_timeout_s", "must be a positive number"),
        ("memory_entries", "must be a whole number, at least 0"),
        ("worker_id", "must be text of at most 256 bytes"),
    )
