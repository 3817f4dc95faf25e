"""What the client detects of the engine in its process."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    RELEASES,
    SUBAGENT_AFFINITY,
    FakeLLM,
    Release,
    install,
)
from worker_client import AdpRouter, EngineDialect, EngineProfile, EngineTypes

AFFINITY = "kv_cache_routing_conversation_affinity"
KV_AWARE = "enable_kv_cache_aware_routing"


def build_llm(attention_dp_config: object, **args: object) -> SimpleNamespace:
    """An engine of four ranks with that config, and with further arguments."""
    defaults: dict[str, object] = {
        "backend": "pytorch",
        "tensor_parallel_size": 4,
        "enable_attention_dp": True,
        "attention_dp_config": attention_dp_config,
    }
    return SimpleNamespace(args=SimpleNamespace(**{**defaults, **args}))


@pytest.mark.parametrize(
    ("release", "router", "dialect", "adp_router"),
    [
        (RANK_ONLY, "default", EngineDialect.RANK_ONLY, AdpRouter.DEFAULT),
        (RANK_ONLY, "kv_cache_aware", EngineDialect.RANK_ONLY, AdpRouter.KV_CACHE_AWARE),
        (
            DISAGGREGATED_PARAMS,
            "conversation",
            EngineDialect.DISAGGREGATED_PARAMS,
            AdpRouter.CONVERSATION,
        ),
        (CONVERSATION_PARAMS, "conversation", EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION),
        (CONVERSATION_PARAMS, "default", EngineDialect.CONVERSATION_PARAMS, AdpRouter.DEFAULT),
        (
            CONVERSATION_PARAMS,
            "kv_cache_aware",
            EngineDialect.CONVERSATION_PARAMS,
            AdpRouter.KV_CACHE_AWARE,
        ),
        (SUBAGENT_AFFINITY, "conversation", EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION),
    ],
)
def test_the_release_gives_the_dialect_and_the_config_the_router(
    release: Release, router: str, dialect: EngineDialect, adp_router: AdpRouter
) -> None:
    with install(release):
        profile = EngineProfile.detect(FakeLLM(release, 4, router=router))
    assert (profile.dialect, profile.adp_router, profile.dp_size) == (dialect, adp_router, 4)
    assert profile.version == release.version
    assert profile.types.scheduling_params is release.scheduling_params


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_the_subagent_parameter_is_recognized_by_its_field(release: Release) -> None:
    with install(release):
        profile = EngineProfile.detect(FakeLLM(release, 4))
    assert profile.subagent_affinity is (release is SUBAGENT_AFFINITY)


@pytest.mark.parametrize("per_conversation", [True, False])
def test_a_per_conversation_reuse_policy_wants_the_id(per_conversation: bool) -> None:
    """It reads the id even where no router does."""
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, per_conversation_reuse=per_conversation)
        assert EngineProfile.detect(llm).wants_conversation_id is per_conversation


@pytest.mark.parametrize("release", [DISAGGREGATED_PARAMS, CONVERSATION_PARAMS], ids=lambda r: r.name)
def test_the_config_may_be_a_mapping(release: Release) -> None:
    """As a YAML file's `attention_dp_config` is."""
    with install(release):
        llm = FakeLLM(release, 4, router="conversation", config_as_dict=True)
        profile = EngineProfile.detect(llm)
    assert profile.adp_router is AdpRouter.CONVERSATION
    assert profile.dialect.name.lower() == release.name


class PydanticLike:
    """A config that declares its fields as pydantic models do: on the class."""

    model_fields: ClassVar = {AFFINITY: object(), KV_AWARE: object()}

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def test_the_config_may_be_a_pydantic_model() -> None:
    with install(DISAGGREGATED_PARAMS):
        profile = EngineProfile.detect(build_llm(PydanticLike(**{AFFINITY: True})))
    assert profile.dialect is EngineDialect.DISAGGREGATED_PARAMS
    assert profile.adp_router is AdpRouter.CONVERSATION


class Mockish:
    """An object that has every attribute, none of them a bool."""

    def __getattr__(self, name: str) -> Any:
        return Mockish()


@pytest.mark.parametrize("value", [1, "true", "False", [True], Mockish()], ids=repr)
def test_only_a_real_true_in_the_config_counts(value: object) -> None:
    assert EngineProfile.detect(build_llm({AFFINITY: value})).adp_router is AdpRouter.DEFAULT
    assert EngineProfile.detect(build_llm({KV_AWARE: value})).adp_router is AdpRouter.DEFAULT


def test_the_conversation_router_wins_where_both_are_configured() -> None:
    """As in the engine's own choice."""
    assert (
        EngineProfile.detect(build_llm({AFFINITY: True, KV_AWARE: True})).adp_router is AdpRouter.CONVERSATION
    )


def test_the_kv_cache_aware_router_needs_block_reuse() -> None:
    """Without a cache to probe the engine balances."""
    llm = build_llm({KV_AWARE: True}, kv_cache_config={"enable_block_reuse": False})
    assert EngineProfile.detect(llm).adp_router is AdpRouter.DEFAULT


def test_only_the_pytorch_backend_has_attention_dp_routers() -> None:
    assert (
        EngineProfile.detect(build_llm({AFFINITY: True}, backend="tensorrt")).adp_router is AdpRouter.DEFAULT
    )


@pytest.mark.parametrize(
    ("args", "requests"),
    [
        ({"max_batch_size": 16}, 16),
        ({"max_batch_size": 16, "pipeline_parallel_size": 1}, 16),
        ({"max_batch_size": 16, "pipeline_parallel_size": 4}, 64),
        ({"max_batch_size": 16, "pipeline_parallel_size": None}, 16),
        ({"max_batch_size": 16, "pipeline_parallel_size": "4"}, 16),
        ({"pipeline_parallel_size": 4}, 0),
        ({}, 0),
        ({"max_batch_size": None}, 0),
        ({"max_batch_size": "16"}, 0),
        ({"max_batch_size": True}, 0),
    ],
    ids=str,
)
def test_a_rank_runs_pipeline_parallel_size_times_the_batch_size_requests(
    args: dict[str, object], requests: int
) -> None:
    """As the executor's own hard cap; unknown where the config does not say."""
    assert EngineProfile.detect(build_llm(None, **args)).max_active_requests == requests


@pytest.mark.parametrize(
    ("args", "dp_size"),
    [
        ({}, 4),
        ({"enable_attention_dp": False}, 1),
        ({"enable_attention_dp": "yes"}, 0),
        ({"tensor_parallel_size": "4"}, 0),
        ({"tensor_parallel_size": True}, 0),
        ({"tensor_parallel_size": 0}, 0),
    ],
    ids=str,
)
def test_dp_size_is_the_tensor_parallel_size_where_attention_dp_is_on(
    args: dict[str, object], dp_size: int
) -> None:
    """One rank without attention DP; unknown where the config can't be read."""
    assert EngineProfile.detect(build_llm(None, **args)).dp_size == dp_size


class Awkward:
    """An object whose every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "llm",
    [
        None,
        object(),
        Awkward(),
        Mockish(),
        SimpleNamespace(args=None),
        SimpleNamespace(args=Awkward()),
        build_llm(Awkward()),
        build_llm([AFFINITY]),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_an_engine_of_unexpected_shape_has_an_unknown_or_default_router(
    release: Release, llm: object
) -> None:
    """Detection never raises and never claims a router that it has not read."""
    with install(release):
        profile = EngineProfile.detect(llm)
    assert profile.adp_router in (AdpRouter.UNKNOWN, AdpRouter.DEFAULT)


def test_without_tensorrt_llm_there_are_no_types_and_only_a_rank_can_be_sent() -> None:
    assert EngineTypes.find() == EngineTypes()
    assert EngineProfile.detect(build_llm({AFFINITY: True})).dialect is EngineDialect.RANK_ONLY


def test_a_lazy_profile_waits_until_the_engine_exists_and_is_then_kept() -> None:
    """None, an exception and unset arguments all mean: not yet."""
    llm = build_llm({AFFINITY: True})
    unfinished = SimpleNamespace(args=None)
    steps: list[object] = [None, RuntimeError("not initialised"), unfinished, Awkward(), llm, llm]

    def get_llm() -> object:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    source = EngineProfile.lazy(get_llm, records_first_rank=True)
    assert [source.current() for _ in range(4)] == [None] * 4
    profile = source.current()
    assert profile is not None
    assert (profile.adp_router, profile.records_first_rank) == (AdpRouter.CONVERSATION, True)
    assert source.current() is profile


def test_a_lazy_profile_of_an_engine_without_arguments_is_unknown_and_not_absent() -> None:
    """So that `affinity on` can fill it in."""
    profile = EngineProfile.lazy(object).current()
    assert profile is not None
    assert (profile.adp_router, profile.dp_size) == (AdpRouter.UNKNOWN, 0)


def test_each_start_of_an_engine_is_another_instance() -> None:
    """A new engine has an empty cache, so nothing of the old one holds."""
    llm = build_llm(None)
    assert EngineProfile.detect(llm).instance_id != EngineProfile.detect(llm).instance_id


@pytest.mark.parametrize("instance_id", ["shared-engine", "", None])
def test_processes_that_share_an_engine_pass_its_instance_id(instance_id: str | None) -> None:
    """Without one, each profile is an engine start of its own."""
    llm = build_llm(None)
    profiles = [EngineProfile.detect(llm, instance_id=instance_id) for _ in range(2)]
    profiles.append(EngineProfile.detect(llm))
    names = {profile.instance_id for profile in profiles}
    assert len(names) == (2 if instance_id else 3)
    assert (instance_id in names) is bool(instance_id)
    assert "" not in names


def test_another_engine_of_a_lazy_profile_is_another_instance() -> None:
    """Its cache is empty, and its config may be another one."""
    engines = [build_llm({AFFINITY: True}), build_llm({KV_AWARE: True})]
    current: list[object] = [engines[0]]
    source = EngineProfile.lazy(lambda: current[0], records_first_rank=True)
    first = source.current()
    current[0] = None
    assert source.current() is None
    current[0] = engines[0]
    assert source.current() is first
    current[0] = engines[1]
    second = source.current()
    assert first is not None
    assert second is not None
    assert second is source.current()
    assert first.instance_id != second.instance_id
    assert (first.adp_router, second.adp_router) == (AdpRouter.CONVERSATION, AdpRouter.KV_CACHE_AWARE)
    assert second.records_first_rank


def test_another_engine_of_a_lazy_profile_that_is_still_being_built_is_waited_for() -> None:
    current: list[object] = [build_llm(None)]
    source = EngineProfile.lazy(lambda: current[0])
    assert source.current() is not None
    current[0] = SimpleNamespace(args=None)
    assert source.current() is None


def test_a_lazy_profile_asks_for_the_instance_id_once_per_engine() -> None:
    names = iter(["start-1", "start-2", "start-3"])
    current: list[object] = [None]
    source = EngineProfile.lazy(lambda: current[0], get_instance_id=lambda: next(names))
    found = []
    for engine in (None, build_llm(None), build_llm(None)):
        current[0] = engine
        found += [profile.instance_id for _ in range(2) if (profile := source.current()) is not None]
    assert found == ["start-1", "start-1", "start-2", "start-2"]


def test_a_lazy_profile_without_its_instance_id_yet_is_not_ready() -> None:
    """A nonce in its place would be another engine to the other processes that share this one."""
    names: list[str] = []
    source = EngineProfile.lazy(lambda: llm, get_instance_id=lambda: names[0])
    llm = build_llm(None)
    assert source.current() is None
    names.append("start-1")
    profile = source.current()
    assert profile is not None
    assert profile.instance_id == "start-1"


def test_detection_leaves_the_engines_config_alone() -> None:
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
        before = asdict(llm.args)
        EngineProfile.detect(llm)
        assert asdict(llm.args) == before
