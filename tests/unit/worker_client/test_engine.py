"""What the client makes of the engine in its process."""

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
    Release,
    StandInLLM,
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
def test_release_and_config_are_recognised(
    release: Release, router: str, dialect: EngineDialect, adp_router: AdpRouter
) -> None:
    """Dialect by what is importable, router by the engine's own config."""
    with install(release):
        profile = EngineProfile.detect(StandInLLM(release, 4, router=router))
    assert (profile.dialect, profile.adp_router, profile.dp_size) == (dialect, adp_router, 4)
    assert profile.version == release.version
    assert profile.types.scheduling_params is release.scheduling_params


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_subagent_parameter_is_recognised_by_its_field(release: Release) -> None:
    """Only a `SchedulingParams` with `subagent_affinity_id` gets one."""
    with install(release):
        profile = EngineProfile.detect(StandInLLM(release, 4))
    assert profile.subagent_affinity is (release is SUBAGENT_AFFINITY)


@pytest.mark.parametrize("per_conversation", [True, False])
def test_per_conversation_reuse_wants_the_id(per_conversation: bool) -> None:
    """That KV block-reuse policy reads the id even where no router does."""
    with install(CONVERSATION_PARAMS):
        llm = StandInLLM(CONVERSATION_PARAMS, 4, per_conversation_reuse=per_conversation)
        assert EngineProfile.detect(llm).wants_conversation_id is per_conversation


@pytest.mark.parametrize("release", [DISAGGREGATED_PARAMS, CONVERSATION_PARAMS], ids=lambda r: r.name)
def test_config_may_be_a_mapping(release: Release) -> None:
    """A YAML file's attention_dp_config is read as the engine's own object is."""
    with install(release):
        llm = StandInLLM(release, 4, router="conversation", config_as_dict=True)
        profile = EngineProfile.detect(llm)
    assert profile.adp_router is AdpRouter.CONVERSATION
    assert profile.dialect.name.lower() == release.name


class PydanticLike:
    """A config that declares its fields as pydantic models do: on the class."""

    model_fields: ClassVar = {AFFINITY: object(), KV_AWARE: object()}

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def test_config_may_be_a_pydantic_model() -> None:
    """The fields of a model are found on its class."""
    with install(DISAGGREGATED_PARAMS):
        profile = EngineProfile.detect(build_llm(PydanticLike(**{AFFINITY: True})))
    assert profile.dialect is EngineDialect.DISAGGREGATED_PARAMS
    assert profile.adp_router is AdpRouter.CONVERSATION


class Mockish:
    """An object that has every attribute, none of them a bool."""

    def __getattr__(self, name: str) -> Any:
        return Mockish()


@pytest.mark.parametrize("value", [1, "true", "False", [True], Mockish()], ids=repr)
def test_only_a_real_true_counts(value: object) -> None:
    """What merely looks true switches no router on."""
    assert EngineProfile.detect(build_llm({AFFINITY: value})).adp_router is AdpRouter.DEFAULT
    assert EngineProfile.detect(build_llm({KV_AWARE: value})).adp_router is AdpRouter.DEFAULT


def test_conversation_router_wins_where_both_are_configured() -> None:
    """As in the engine's own choice."""
    assert (
        EngineProfile.detect(build_llm({AFFINITY: True, KV_AWARE: True})).adp_router is AdpRouter.CONVERSATION
    )


def test_kv_cache_aware_router_needs_block_reuse() -> None:
    """Without a cache to probe the engine balances."""
    llm = build_llm({KV_AWARE: True}, kv_cache_config={"enable_block_reuse": False})
    assert EngineProfile.detect(llm).adp_router is AdpRouter.DEFAULT


def test_other_backends_have_no_such_router() -> None:
    """Only the PyTorch backend has attention-DP routers."""
    assert (
        EngineProfile.detect(build_llm({AFFINITY: True}, backend="tensorrt")).adp_router is AdpRouter.DEFAULT
    )


@pytest.mark.parametrize(
    ("args", "requests"),
    [({"max_batch_size": 16}, 16), ({}, 0), ({"max_batch_size": None}, 0), ({"max_batch_size": "16"}, 0)],
    ids=str,
)
def test_requests_of_a_rank_are_the_batch_size(args: dict[str, object], requests: int) -> None:
    """Unknown where the config does not say."""
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
    """One rank without attention DP, unknown where the config can't be read."""
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
def test_odd_engine_is_an_unknown_one(release: Release, llm: object) -> None:
    """Detection never raises and never claims a router that it has not seen."""
    with install(release):
        profile = EngineProfile.detect(llm)
    assert profile.adp_router in (AdpRouter.UNKNOWN, AdpRouter.DEFAULT)


def test_without_tensorrt_llm_there_are_no_types() -> None:
    """The client runs where the engine can't be imported."""
    assert EngineTypes.find() == EngineTypes()
    assert EngineProfile.detect(build_llm({AFFINITY: True})).dialect is EngineDialect.RANK_ONLY


def test_lazy_profile_waits_until_the_engine_exists() -> None:
    """None, an exception and unset arguments all mean: not yet; then the profile is kept."""
    llm = build_llm({AFFINITY: True})
    steps: list[object] = [None, RuntimeError("not initialised"), SimpleNamespace(args=None), Awkward(), llm]

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
    assert steps == []


def test_lazy_profile_of_an_engine_without_arguments_is_unknown_not_absent() -> None:
    """So that `affinity on` can fill it in."""
    profile = EngineProfile.lazy(object).current()
    assert profile is not None
    assert (profile.adp_router, profile.dp_size) == (AdpRouter.UNKNOWN, 0)


def test_each_start_of_an_engine_is_another_instance() -> None:
    """A new engine has an empty cache, so nothing of the old one holds."""
    llm = build_llm(None)
    assert EngineProfile.detect(llm).instance_id != EngineProfile.detect(llm).instance_id


def test_detection_changes_no_config() -> None:
    """The engine's config is read only."""
    with install(CONVERSATION_PARAMS):
        llm = StandInLLM(CONVERSATION_PARAMS, 4, router="conversation")
        before = asdict(llm.args)
        EngineProfile.detect(llm)
        assert asdict(llm.args) == before
