"""The engines of one stream, and which of them runs a request."""

from __future__ import annotations

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import AdpRouter
from sidecar.model import UNKNOWN_ENGINE
from sidecar.wire.engine_codec import EngineRegistry
from sidecar.wire.field_limit import FieldError
from sidecar.wire.request_codec import NO_ENGINES

MAX_ENGINES = 64
"""As service.proto says."""


def _profile(instance_id: str, dp_size: int = 4) -> types_pb2.EngineProfile:
    return types_pb2.EngineProfile(instance_id=instance_id, dp_size=dp_size)


def _request(
    instance_id: str = "", engine: types_pb2.EngineProfile | None = None
) -> service_pb2.EnrichRequest:
    return service_pb2.EnrichRequest(
        phase=types_pb2.PHASE_PREFILL, engine_instance=instance_id, engine=engine
    )


def _is_known(engines: EngineRegistry, instance_id: str) -> bool:
    try:
        engines.find(_request(instance_id))
    except FieldError:
        return False
    return True


def test_request_has_the_engine_of_its_instance() -> None:
    engines = EngineRegistry()
    engines.register(_profile("a", dp_size=2))
    engines.register(_profile("b", dp_size=8))
    found = [engines.find(_request(instance_id)).engine for instance_id in ("a", "b")]
    assert [(engine.instance_id, engine.dp_size) for engine in found] == [("a", 2), ("b", 8)]


def test_unknown_instance_is_refused() -> None:
    """The client then sends the profile again."""
    engines = EngineRegistry()
    engines.register(_profile("a"))
    with pytest.raises(FieldError) as caught:
        engines.find(_request("secret"))
    assert caught.value.field == "engine_instance"
    assert "secret" not in str(caught.value)


def test_call_without_a_stream_knows_no_instance() -> None:
    assert not _is_known(NO_ENGINES, "a")


def test_instance_is_an_engine_of_its_own_stream_only() -> None:
    """Two workers may choose one nonce."""
    first, second = EngineRegistry(), EngineRegistry()
    first.register(_profile("a"))
    assert _is_known(first, "a")
    assert not _is_known(second, "a")


def test_repeated_instance_replaces_the_engine() -> None:
    engines = EngineRegistry()
    engines.register(_profile("a", dp_size=4))
    engines.register(_profile("a", dp_size=8))
    assert engines.find(_request("a")).engine.dp_size == 8


def test_registering_says_whether_it_changes_anything() -> None:
    engines = EngineRegistry()
    profiles = [_profile("a", dp_size=4), _profile("a", dp_size=4), _profile("a", dp_size=8), _profile("b")]
    assert [engines.register(profile) for profile in profiles] == [True, False, True, True]


def test_refused_profile_leaves_the_engine_of_its_instance() -> None:
    engines = EngineRegistry()
    engines.register(_profile("a", dp_size=4))
    with pytest.raises(FieldError):
        engines.register(_profile("a", dp_size=65_537))
    assert engines.find(_request("a")).engine.dp_size == 4


def test_sixty_fifth_engine_evicts_the_one_used_longest_ago() -> None:
    """A request uses its engine, and so does registering it again."""
    engines = EngineRegistry()
    names = [f"e{number}" for number in range(MAX_ENGINES)]
    for name in names:
        engines.register(_profile(name))
    engines.find(_request("e0"))
    engines.register(_profile("e1"))
    engines.register(_profile("new"))
    assert [name for name in (*names, "new") if not _is_known(engines, name)] == ["e2"]


def test_profile_of_the_request_wins_over_its_instance() -> None:
    engines = EngineRegistry()
    engines.register(_profile("a", dp_size=2))
    for instance_id in ("a", "unknown"):
        found = engines.find(_request(instance_id, _profile("b", dp_size=8)))
        assert (found.engine.instance_id, found.engine.dp_size) == ("b", 8)


def test_profile_of_a_request_is_not_registered() -> None:
    engines = EngineRegistry()
    engines.find(_request(engine=_profile("a")))
    assert not _is_known(engines, "a")


def test_request_with_neither_has_an_engine_of_which_nothing_is_known() -> None:
    """Also where the stream has engines."""
    engines = EngineRegistry()
    engines.register(_profile("a"))
    found = engines.find(_request())
    assert (found.engine, found.unknown_enums) == (UNKNOWN_ENGINE, ())
    assert found.engine.adp_router is AdpRouter.UNKNOWN


def test_unset_profile_is_an_engine_of_unset_values() -> None:
    """An empty message is a profile; its values mean what the contract says of zero."""
    found = NO_ENGINES.find(_request(engine=types_pb2.EngineProfile()))
    assert found.engine.adp_router is AdpRouter.UNSPECIFIED
    assert not found.engine.adp_router.is_known
