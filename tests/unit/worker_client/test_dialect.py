"""Each dialect's adapter: which engines speak it, and how it attaches an id to what the caller passes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from examples.fake_engine import (
    CONVERSATION_PARAMS,
    DISAGGREGATED_PARAMS,
    RANK_ONLY,
    RELEASES,
    FakeLLM,
    Release,
    install,
)
from tests.support.builders import DIALECTS, build_types
from tests.support.strategies import Awkward
from worker_client import EngineDialect, EngineProfile, EngineTypes
from worker_client._dialect import (
    ADAPTERS,
    ConversationParamsAdapter,
    DialectAdapter,
    DisaggregatedParamsAdapter,
    detect_dialect,
    find_adapter,
)

AFFINITY = "kv_cache_routing_conversation_affinity"
RELEASE_OF = {
    EngineDialect.RANK_ONLY: RANK_ONLY,
    EngineDialect.DISAGGREGATED_PARAMS: DISAGGREGATED_PARAMS,
    EngineDialect.CONVERSATION_PARAMS: CONVERSATION_PARAMS,
}
ALL = [pytest.param(adapter, id=dialect.name.lower()) for dialect, adapter in ADAPTERS.items()]


def build_params(release: Release, **fields: Any) -> Any:
    """The caller's `DisaggregatedParams` of a context request."""
    return release.disaggregated_params(request_type="context_only", **fields)


class OlderLLM:
    args = SimpleNamespace()

    def generate_async(self, inputs: object, scheduling_params: object = None) -> None: ...


class NewerLLM:
    args = SimpleNamespace()

    def generate_async(self, inputs: object, conversation_params: object = None) -> None: ...


class WrappedLLM:
    args = SimpleNamespace()

    def generate_async(self, *args: Any, **kwargs: Any) -> None: ...


# Which engines speak it.


def test_every_dialect_has_one_adapter_and_an_unspecified_one_is_rank_only() -> None:
    assert set(ADAPTERS) == set(EngineDialect) - {EngineDialect.UNSPECIFIED}
    assert all(find_adapter(dialect).dialect is dialect for dialect in ADAPTERS)
    assert find_adapter(EngineDialect.UNSPECIFIED).dialect is EngineDialect.RANK_ONLY


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_the_first_adapter_that_matches_is_the_dialect_of_the_release(release: Release) -> None:
    llm = FakeLLM(release, 4)
    assert detect_dialect(build_types(release), llm, None) is DIALECTS[release.name]


def test_the_rank_only_adapter_matches_every_engine() -> None:
    assert DialectAdapter().matches(EngineTypes(), object(), None)
    assert DialectAdapter().matches(build_types(CONVERSATION_PARAMS), NewerLLM(), {AFFINITY: True})


def test_the_newest_dialect_wins_where_a_release_speaks_two() -> None:
    types = EngineTypes(
        conversation_params=CONVERSATION_PARAMS.conversation_params,
        disaggregated_params=DISAGGREGATED_PARAMS.disaggregated_params,
        attention_dp_config=DISAGGREGATED_PARAMS.attention_dp_config,
    )
    assert DisaggregatedParamsAdapter().matches(types, NewerLLM(), None)
    assert detect_dialect(types, NewerLLM(), None) is EngineDialect.CONVERSATION_PARAMS


@pytest.mark.parametrize(
    ("release", "config_of", "config", "matches"),
    [
        (DISAGGREGATED_PARAMS, DISAGGREGATED_PARAMS, None, True),
        (DISAGGREGATED_PARAMS, None, {AFFINITY: False}, True),
        (DISAGGREGATED_PARAMS, None, SimpleNamespace(**{AFFINITY: False}), True),
        (DISAGGREGATED_PARAMS, RANK_ONLY, None, False),
        (DISAGGREGATED_PARAMS, None, {"other": True}, False),
        (RANK_ONLY, DISAGGREGATED_PARAMS, {AFFINITY: True}, False),
    ],
    ids=["class", "mapping", "object", "older-class", "other-config", "no-field"],
)
def test_the_field_for_an_id_counts_only_where_the_release_has_the_routers_setting(
    release: Release, config_of: Release | None, config: object, matches: bool
) -> None:
    """Without a router that reads it, the field belongs to something else."""
    types = EngineTypes(
        disaggregated_params=release.disaggregated_params,
        attention_dp_config=config_of.attention_dp_config if config_of else None,
    )
    assert DisaggregatedParamsAdapter().matches(types, OlderLLM(), config) is matches


def test_a_release_with_the_setting_speaks_its_dialect_where_nothing_is_configured() -> None:
    with install(DISAGGREGATED_PARAMS):
        llm = FakeLLM(DISAGGREGATED_PARAMS, 4, router="default")
        assert llm.args.attention_dp_config is None
        assert EngineProfile.detect(llm).dialect is EngineDialect.DISAGGREGATED_PARAMS


def test_an_engine_without_the_keyword_is_not_passed_it() -> None:
    """Where `generate_async` is known not to take `conversation_params`, the class alone means nothing."""
    with install(CONVERSATION_PARAMS):
        assert EngineProfile.detect(OlderLLM()).dialect is EngineDialect.RANK_ONLY


@pytest.mark.parametrize("llm", [NewerLLM(), WrappedLLM(), object(), Awkward()], ids=range(4))
def test_an_engine_with_the_keyword_is_passed_it(llm: object) -> None:
    """A named parameter, a catch-all, and a signature that can't be read all count as taking it."""
    with install(CONVERSATION_PARAMS):
        assert EngineProfile.detect(llm).dialect is EngineDialect.CONVERSATION_PARAMS


def test_the_keyword_without_its_class_is_not_passed() -> None:
    assert not ConversationParamsAdapter().matches(EngineTypes(), NewerLLM(), None)


# How it attaches an id.


@pytest.mark.parametrize("adapter", ALL)
def test_an_id_is_attached_exactly_where_the_dialect_carries_one(adapter: DialectAdapter) -> None:
    release = RELEASE_OF[adapter.dialect]
    attachment = adapter.attach("c", build_types(release), build_params(release))
    assert attachment.id_attached is adapter.dialect.carries_conversation_id
    assert attachment.reason == ("" if attachment.id_attached else "dialect-cannot-carry-id")


@pytest.mark.parametrize("adapter", ALL)
def test_without_an_id_the_callers_own_object_goes_on(adapter: DialectAdapter) -> None:
    release = RELEASE_OF[adapter.dialect]
    given = build_params(release)
    attachment = adapter.attach(None, build_types(release), given)
    assert attachment.disaggregated_params is given
    assert (attachment.conversation_params, attachment.id_attached, attachment.reason) == (None, False, "")


@pytest.mark.parametrize("adapter", ALL)
@pytest.mark.parametrize("conversation_id", ["c", None])
def test_a_stale_id_never_goes_on_and_the_callers_object_stays_unchanged(
    adapter: DialectAdapter, conversation_id: str | None
) -> None:
    """An id that came along from another phase would pin the request to another conversation."""
    given = build_params(DISAGGREGATED_PARAMS, conversation_id="stale", ctx_dp_rank=1, first_gen_tokens=[7])
    before = asdict(given)
    attachment = adapter.attach(conversation_id, build_types(CONVERSATION_PARAMS), given)
    is_field = adapter.dialect is EngineDialect.DISAGGREGATED_PARAMS
    sent = asdict(attachment.disaggregated_params)
    assert sent == {**before, "conversation_id": conversation_id if is_field else None}
    assert asdict(given) == before


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (DialectAdapter(), "dialect-cannot-carry-id"),
        (DisaggregatedParamsAdapter(), "engine-refused-id"),
        (ConversationParamsAdapter(), ""),
    ],
    ids=["rank_only", "disaggregated_params", "conversation_params"],
)
def test_an_object_that_can_not_be_read_goes_on_as_it_is(adapter: DialectAdapter, reason: str) -> None:
    given = Awkward()
    attachment = adapter.attach("c", build_types(RELEASE_OF[adapter.dialect]), given)
    assert attachment.disaggregated_params is given
    assert (attachment.id_attached, attachment.reason) == (not reason, reason)


@pytest.mark.parametrize("given", [None, build_params(RANK_ONLY), object()], ids=["none", "older", "other"])
def test_without_an_object_that_has_the_field_the_id_is_not_attached(given: object) -> None:
    attachment = DisaggregatedParamsAdapter().attach("c", build_types(DISAGGREGATED_PARAMS), given)
    assert attachment.disaggregated_params is given
    assert (attachment.id_attached, attachment.reason) == (False, "no-disaggregated-params")


def test_an_object_that_has_the_id_already_is_not_copied() -> None:
    given = build_params(DISAGGREGATED_PARAMS, conversation_id="c")
    attachment = DisaggregatedParamsAdapter().attach("c", build_types(DISAGGREGATED_PARAMS), given)
    assert attachment.disaggregated_params is given
    assert attachment.id_attached


@dataclass(frozen=True)
class FrozenParams:
    """Refuses to be changed, as a stricter release might."""

    conversation_id: str


def test_an_object_that_refuses_the_id_goes_on_without_it() -> None:
    given = FrozenParams("stale")
    attachment = DisaggregatedParamsAdapter().attach("c", build_types(DISAGGREGATED_PARAMS), given)
    assert attachment.disaggregated_params is given
    assert given == FrozenParams("stale")
    assert (attachment.id_attached, attachment.reason) == (False, "engine-refused-id")


def test_the_keyword_argument_is_built_of_the_releases_own_class() -> None:
    given = build_params(CONVERSATION_PARAMS)
    attachment = ConversationParamsAdapter().attach("c", build_types(CONVERSATION_PARAMS), given)
    assert attachment.conversation_params == CONVERSATION_PARAMS.conversation_params(conversation_id="c")
    assert attachment.disaggregated_params is given


def test_an_id_that_the_class_refuses_is_not_attached() -> None:
    """`ConversationParams` raises ValueError for a blank id."""
    attachment = ConversationParamsAdapter().attach(" ", build_types(CONVERSATION_PARAMS), None)
    assert (attachment.conversation_params, attachment.id_attached) == (None, False)
    assert attachment.reason == "engine-refused-id"


def test_without_the_class_the_id_is_not_attached() -> None:
    attachment = ConversationParamsAdapter().attach("c", EngineTypes(), None)
    assert (attachment.conversation_params, attachment.id_attached) == (None, False)
    assert attachment.reason == "dialect-cannot-carry-id"
