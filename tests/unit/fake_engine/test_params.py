"""The stand-in's parameters refuse what the real ones refuse."""

import importlib
import sys

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
from examples.fake_engine.params import ConversationParams


@pytest.fixture(params=RELEASES, ids=lambda release: f"{release.name}-{release.version}")
def release(request: pytest.FixtureRequest) -> Release:
    """Every kind of release, one after the other."""
    release: Release = request.param
    return release


def test_unknown_constructor_key_is_refused(release: Release) -> None:
    """A key that Dynamo's codec would splat into the constructor breaks it, as in the decode worker."""
    for cls in (release.disaggregated_params, release.scheduling_params):
        with pytest.raises(TypeError):
            cls(session_id="x")


def test_positional_argument_is_refused(release: Release) -> None:
    """Every field is keyword-only."""
    with pytest.raises(TypeError):
        release.scheduling_params(1)


def test_unknown_attribute_is_refused(release: Release) -> None:
    """Slots: setting what the release has not is an error and no silent no-op."""
    for params in (release.disaggregated_params(), release.scheduling_params()):
        with pytest.raises(AttributeError):
            params.some_new_field = "x"


def test_only_one_dialect_has_the_id_in_disaggregated_params() -> None:
    """An id set on `DisaggregatedParams` of the other dialects is an AttributeError."""
    assert DISAGGREGATED_PARAMS.disaggregated_params(conversation_id="c").conversation_id == "c"
    for other in (RANK_ONLY, CONVERSATION_PARAMS, SUBAGENT_AFFINITY):
        with pytest.raises(TypeError):
            other.disaggregated_params(conversation_id="c")


@pytest.mark.parametrize("blank", ["", "  \t", None])
def test_blank_conversation_id_is_refused(blank: str | None) -> None:
    """`ConversationParams` has no blank id."""
    with pytest.raises(ValueError, match="blank"):
        ConversationParams(conversation_id=blank)  # type: ignore[arg-type]


def test_conversation_id_is_trimmed() -> None:
    """`ConversationParams` strips its id."""
    assert ConversationParams(conversation_id=" c ").conversation_id == "c"


def test_unset_relax_is_none_in_older_releases() -> None:
    """The default that crashes the scheduler exists only where the real one has it."""
    assert RANK_ONLY.scheduling_params().attention_dp_relax is None
    assert CONVERSATION_PARAMS.scheduling_params().attention_dp_relax is True


def test_modules_offer_exactly_what_the_release_has(release: Release) -> None:
    """Whatever a release has not is an ImportError, so feature detection is really exercised."""
    with install(release):
        llmapi = importlib.import_module("tensorrt_llm.llmapi")
        scheduling = importlib.import_module("tensorrt_llm.scheduling_params")
        assert llmapi.DisaggregatedParams is release.disaggregated_params
        assert scheduling.SchedulingParams is release.scheduling_params
        assert hasattr(llmapi, "ConversationParams") == (release.conversation_params is not None)
        with pytest.raises(ImportError):
            importlib.import_module("tensorrt_llm.executor")


def test_modules_are_taken_away_again() -> None:
    """After the block nothing of the stand-in is left, also when the block raises."""
    with pytest.raises(RuntimeError, match="block"), install(RANK_ONLY):
        raise RuntimeError("block")
    assert not [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]


def test_older_config_has_no_conversation_flag() -> None:
    """A release without the conversation router cannot be configured to have it."""
    llm = StandInLLM(RANK_ONLY, 4, router="kv_cache_aware")
    assert not hasattr(llm.args.attention_dp_config, "kv_cache_routing_conversation_affinity")
    with pytest.raises(ValueError, match="conversation router"):
        StandInLLM(RANK_ONLY, 4, router="conversation")
