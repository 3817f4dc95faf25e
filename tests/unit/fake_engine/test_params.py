"""The fake engine's parameters refuse what the real ones refuse."""

import importlib
import sys

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
from examples.fake_engine.params import ConversationParams


@pytest.fixture(params=RELEASES, ids=lambda release: f"{release.name}-{release.version}")
def release(request: pytest.FixtureRequest) -> Release:
    release: Release = request.param
    return release


def test_an_unknown_constructor_key_is_refused(release: Release) -> None:
    """Dynamo's codec would splat it into the constructor, which then breaks the decode worker."""
    for cls in (release.disaggregated_params, release.scheduling_params):
        with pytest.raises(TypeError):
            cls(session_id="x")


def test_a_positional_argument_is_refused(release: Release) -> None:
    with pytest.raises(TypeError):
        release.scheduling_params(1)


def test_an_unknown_attribute_is_refused(release: Release) -> None:
    """Setting what the release does not have is an error and no silent no-op."""
    for params in (release.disaggregated_params(), release.scheduling_params()):
        with pytest.raises(AttributeError):
            params.some_new_field = "x"


def test_only_one_dialect_has_the_id_in_disaggregated_params() -> None:
    assert DISAGGREGATED_PARAMS.disaggregated_params(conversation_id="c").conversation_id == "c"
    for other in (RANK_ONLY, CONVERSATION_PARAMS, SUBAGENT_AFFINITY):
        with pytest.raises(TypeError):
            other.disaggregated_params(conversation_id="c")


@pytest.mark.parametrize("blank", ["", "  \t", None])
def test_a_blank_conversation_id_is_refused(blank: str | None) -> None:
    with pytest.raises(ValueError, match="blank"):
        ConversationParams(conversation_id=blank)  # type: ignore[arg-type]


def test_a_conversation_id_is_trimmed() -> None:
    assert ConversationParams(conversation_id=" c ").conversation_id == "c"


def test_unset_relax_is_none_in_older_releases() -> None:
    """The default that ends the engine exists only where the real release has it."""
    assert RANK_ONLY.scheduling_params().attention_dp_relax is None
    assert CONVERSATION_PARAMS.scheduling_params().attention_dp_relax is True


def test_modules_offer_exactly_what_the_release_has(release: Release) -> None:
    """So that feature detection is really exercised."""
    with install(release):
        llmapi = importlib.import_module("tensorrt_llm.llmapi")
        scheduling = importlib.import_module("tensorrt_llm.scheduling_params")
        assert llmapi.DisaggregatedParams is release.disaggregated_params
        assert scheduling.SchedulingParams is release.scheduling_params
        assert hasattr(llmapi, "ConversationParams") == (release.conversation_params is not None)
        with pytest.raises(ImportError):
            importlib.import_module("tensorrt_llm.executor")


def test_the_modules_are_gone_after_the_block_also_when_it_raises() -> None:
    with pytest.raises(RuntimeError, match="block"), install(RANK_ONLY):
        raise RuntimeError("block")
    assert not [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]


def test_an_older_config_has_no_conversation_flag() -> None:
    llm = FakeLLM(RANK_ONLY, 4, router="kv_cache_aware")
    assert not hasattr(llm.args.attention_dp_config, "kv_cache_routing_conversation_affinity")
    with pytest.raises(ValueError, match="conversation router"):
        FakeLLM(RANK_ONLY, 4, router="conversation")
