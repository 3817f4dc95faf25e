"""What differs between the dialects in which TensorRT-LLM releases take a conversation id, one class each.

A further dialect is a class here, its line in `ADAPTERS`, its vectors and a line of docs/compatibility.md.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from routing_hints import tokens
from routing_hints.vocabulary import EngineDialect
from worker_client._engine_types import AFFINITY_FIELD, EngineTypes, list_field_names

_ABSENT = object()


@dataclass(slots=True)
class Attachment:
    """The caller's parameters with the id of the decision, and with no other.

    Attributes:
        disaggregated_params: the caller's object, or a changed copy of it.
        conversation_params: the value of that keyword argument; None passes none.
        id_attached: whether the id is in one of them.
        reason: why an id is not attached, a token; empty if it is, or there is none.
    """

    disaggregated_params: Any
    conversation_params: Any = None
    id_attached: bool = False
    reason: str = ""


class DialectAdapter:
    """The dialect of releases that take no conversation id: only a rank can be sent."""

    dialect: ClassVar[EngineDialect] = EngineDialect.RANK_ONLY

    def matches(self, types: EngineTypes, llm: object, config: object) -> bool:
        """Returns whether an engine speaks this dialect.

        Args:
            types: the installed release's classes.
            llm: the engine's `LLM`.
            config: its `attention_dp_config`.
        """
        return True

    def attach(self, conversation_id: str | None, types: EngineTypes, given: Any) -> Attachment:
        """Returns the parameters with the id attached where the dialect can; never raises.

        Args:
            conversation_id: None attaches none, and clears the caller's own.
            types: the installed release's classes.
            given: the caller's `DisaggregatedParams`, which it keeps unchanged; None if it has none.
        """
        result = _set_id(given, None)
        if conversation_id is not None:
            result.reason = tokens.DIALECT_CANNOT_CARRY_ID
        return result


class DisaggregatedParamsAdapter(DialectAdapter):
    """The dialect of releases whose `DisaggregatedParams` has the field `conversation_id`."""

    dialect = EngineDialect.DISAGGREGATED_PARAMS

    def matches(self, types: EngineTypes, llm: object, config: object) -> bool:
        """Returns whether the field is there and the release's router reads it, which has a setting."""
        config_fields = list_field_names(types.attention_dp_config) | list_field_names(config)
        return "conversation_id" in list_field_names(types.disaggregated_params) and (
            AFFINITY_FIELD in config_fields
        )

    def attach(self, conversation_id: str | None, types: EngineTypes, given: Any) -> Attachment:
        """Sets the field on a copy of the caller's object."""
        if conversation_id is not None and not _has_id_field(given):
            return Attachment(given, reason=tokens.NO_DISAGGREGATED_PARAMS)
        return _set_id(given, conversation_id)


class ConversationParamsAdapter(DialectAdapter):
    """The dialect of releases whose `generate_async` takes `conversation_params`."""

    dialect = EngineDialect.CONVERSATION_PARAMS

    def matches(self, types: EngineTypes, llm: object, config: object) -> bool:
        """Returns whether the class is there and the method takes it."""
        return types.conversation_params is not None and _takes_keyword(llm, "conversation_params")

    def attach(self, conversation_id: str | None, types: EngineTypes, given: Any) -> Attachment:
        """Builds the keyword argument."""
        result = _set_id(given, None)
        if conversation_id is None:
            return result
        if types.conversation_params is None:
            result.reason = tokens.DIALECT_CANNOT_CARRY_ID
            return result
        try:
            result.conversation_params = types.conversation_params(conversation_id=conversation_id)
            result.id_attached, result.reason = True, ""
        except Exception:  # noqa: BLE001  the engine's own validation may raise anything
            result.reason = tokens.ENGINE_REFUSED_ID
        return result


ADAPTERS: Mapping[EngineDialect, DialectAdapter] = {
    adapter.dialect: adapter
    for adapter in (ConversationParamsAdapter(), DisaggregatedParamsAdapter(), DialectAdapter())
}
"""By dialect, the newest first: the first one that matches an engine is its dialect."""


def detect_dialect(types: EngineTypes, llm: object, config: object) -> EngineDialect:
    """Returns the dialect of an engine; see `DialectAdapter.matches`."""
    return next(dialect for dialect, adapter in ADAPTERS.items() if adapter.matches(types, llm, config))


def find_adapter(dialect: EngineDialect) -> DialectAdapter:
    """Returns the adapter of a dialect; an unspecified one is rank-only."""
    return ADAPTERS.get(dialect) or ADAPTERS[EngineDialect.RANK_ONLY]


def _has_id_field(given: Any) -> bool:
    try:
        return hasattr(given, "conversation_id")
    except Exception:  # noqa: BLE001  a foreign object may raise anything; setting it fails as well
        return True


def _set_id(given: Any, conversation_id: str | None) -> Attachment:
    """Returns the caller's object with this id and no other; it is copied only where it changes."""
    result = Attachment(given)
    try:
        if getattr(given, "conversation_id", _ABSENT) in (_ABSENT, conversation_id):
            result.id_attached = conversation_id is not None
            return result
        result.disaggregated_params = copy.copy(given)
        result.disaggregated_params.conversation_id = conversation_id
        result.id_attached = conversation_id is not None
    except Exception:  # noqa: BLE001  a foreign object may refuse to be compared, copied or set
        result = Attachment(given, reason=tokens.ENGINE_REFUSED_ID)
    return result


def _takes_keyword(llm: object, name: str) -> bool:
    """Returns whether `llm.generate_async` takes a keyword; also true where its signature can't be read."""
    try:
        parameters = inspect.signature(llm.generate_async).parameters  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds
