"""From the contract's engine profiles to the decision's engines, once per stream and not once per request."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from routing_hints.limits import MAX_DP_SIZE, MAX_ENGINES
from routing_hints.v1 import service_pb2, types_pb2
from routing_hints.vocabulary import AdpRouter, EngineDialect, RankSource
from sidecar.model import UNKNOWN_ENGINE, Engine
from sidecar.wire.enum_codec import EnumDecoder
from sidecar.wire.field_limit import ENGINE_LIMITS, FieldError, check_strings

_DIALECT = EnumDecoder(EngineDialect)
_ROUTER = EnumDecoder(AdpRouter)
_RANK_SOURCE = EnumDecoder(RankSource)


class DecodedEngine(NamedTuple):
    """An engine as its profile describes it."""

    engine: Engine
    unknown_enums: tuple[str, ...] = ()
    """Paths of the fields whose enum value this sidecar does not know."""


_UNKNOWN = DecodedEngine(UNKNOWN_ENGINE)


class EngineRegistry:
    """The engines of one stream by instance; of a call without a stream, none.

    Args:
        max_engines: how many are kept; the one used longest ago is forgotten first.
    """

    def __init__(self, max_engines: int = MAX_ENGINES) -> None:
        self._max_engines = max_engines
        self._engines: OrderedDict[str, DecodedEngine] = OrderedDict()

    def register(self, profile: types_pb2.EngineProfile) -> bool:
        """Adds an engine, or replaces the one of the same instance; returns whether that changes anything.

        Raises:
            FieldError: a field breaks its documented range.
        """
        engine = decode_engine(profile, "engines.")
        is_change = self._engines.get(profile.instance_id) != engine
        self._engines[profile.instance_id] = engine
        self._engines.move_to_end(profile.instance_id)
        if len(self._engines) > self._max_engines:
            self._engines.popitem(last=False)
        return is_change

    def find(self, message: service_pb2.EnrichRequest) -> DecodedEngine:
        """Returns the engine that runs a request.

        Raises:
            FieldError: the request's own profile breaks a documented range, or names an instance that is not
                registered.
        """
        if message.HasField("engine"):
            return decode_engine(message.engine, "engine.")
        instance_id = message.engine_instance
        if not instance_id:
            return _UNKNOWN
        found = self._engines.get(instance_id)
        if found is None:
            raise FieldError("engine_instance", "is not an engine of this stream")
        self._engines.move_to_end(instance_id)
        return found


def decode_engine(profile: types_pb2.EngineProfile, path: str) -> DecodedEngine:
    """Returns the engine that a profile describes.

    Args:
        profile: as it came.
        path: begins the paths of its fields.

    Raises:
        FieldError: a field breaks its documented range.
    """
    unknown: list[str] = []
    check_strings(profile, ENGINE_LIMITS, path)
    if profile.dp_size > MAX_DP_SIZE:
        raise FieldError(f"{path}dp_size", f"is above {MAX_DP_SIZE}")
    engine = Engine(
        _DIALECT.decode(profile.dialect, f"{path}dialect", unknown),
        _ROUTER.decode(profile.adp_router, f"{path}adp_router", unknown),
        _RANK_SOURCE.decode(profile.rank_source, f"{path}rank_source", unknown),
        profile.records_first_rank,
        profile.dp_size,
        profile.subagent_affinity,
        profile.wants_conversation_id,
        profile.instance_id,
        profile.max_active_requests,
    )
    return DecodedEngine(engine, tuple(unknown))
