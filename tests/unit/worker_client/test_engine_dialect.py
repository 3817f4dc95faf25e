"""The dialect follows what the installed engine really takes."""

from types import SimpleNamespace
from typing import Any

from examples.fake_engine import CONVERSATION_PARAMS, DISAGGREGATED_PARAMS, StandInLLM, install
from worker_client import EngineDialect, EngineProfile


def test_release_with_the_setting_speaks_its_dialect_where_nothing_is_configured() -> None:
    """The installed config class tells that a router reads the id, also where no config object exists."""
    with install(DISAGGREGATED_PARAMS):
        llm = StandInLLM(DISAGGREGATED_PARAMS, 4, router="default")
        assert llm.args.attention_dp_config is None
        assert EngineProfile.detect(llm).dialect is EngineDialect.DISAGGREGATED_PARAMS


def test_engine_without_the_keyword_is_not_passed_it() -> None:
    """Where `generate_async` is known not to take `conversation_params`, the class alone means nothing."""

    class OlderLLM:
        args = SimpleNamespace()

        def generate_async(self, inputs: object, scheduling_params: object = None) -> None: ...

    with install(CONVERSATION_PARAMS):
        assert EngineProfile.detect(OlderLLM()).dialect is EngineDialect.RANK_ONLY


def test_engine_with_the_keyword_is_passed_it() -> None:
    """A named parameter and a catch-all both take it."""

    class NewerLLM:
        args = SimpleNamespace()

        def generate_async(self, inputs: object, conversation_params: object = None) -> None: ...

    class WrappedLLM:
        args = SimpleNamespace()

        def generate_async(self, *args: Any, **kwargs: Any) -> None: ...

    with install(CONVERSATION_PARAMS):
        for llm in (NewerLLM(), WrappedLLM()):
            assert EngineProfile.detect(llm).dialect is EngineDialect.CONVERSATION_PARAMS
