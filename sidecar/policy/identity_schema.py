"""The identity part of the policy: what a conversation is called; equal parts give equal ids everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Discriminator,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, InitErrorDetails

from sidecar.identity.catalogue import (
    CARRIERS,
    DEFAULT_ORDER,
    DYNAMO_ORDER,
    NEVER_HEADERS,
    TRTLLM_SERVE_ORDER,
)
from sidecar.identity.header_name import check_header_name
from sidecar.policy.policy_part import PolicyPart

_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "trtllm-serve": {
        "order": TRTLLM_SERVE_ORDER,
        "scope": "off",
        "subagents": "off",
        "ids": "unchanged",
    },
    "dynamo": {"order": DYNAMO_ORDER, "scope": "off", "ids": "unchanged"},
}


def _check_key(key: str) -> str:
    if key not in CARRIERS:
        raise ValueError(
            "is no carrier; a header of your own is written as `{header: name}`, known are "
            + ", ".join(CARRIERS)
        )
    return key


def _check_own_header(header: str) -> str:
    name = check_header_name(header)
    if f"header:{name}" in CARRIERS:
        raise ValueError(f"is a carrier already; write it as header:{name}")
    if name in NEVER_HEADERS:
        raise ValueError(f"{NEVER_HEADERS[name]}, so it can't name a conversation")
    return name


class OwnHeader(PolicyPart):
    """A header that names the conversation at this site."""

    header: Annotated[str, AfterValidator(_check_own_header)]
    parent_header: Annotated[str, AfterValidator(check_header_name)] | None = None
    """Names the conversation that started this one."""

    @model_validator(mode="after")
    def _check_parent(self) -> OwnHeader:
        if self.parent_header == self.header:
            raise ValueError("parent_header equals header")
        return self

    @property
    def key(self) -> str:
        """Its name among the carriers."""
        return f"header:{self.header}"


Entry: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_check_key), Tag("<key>")] | Annotated[OwnHeader, Tag("<own>")],
    Discriminator(lambda value: "<own>" if isinstance(value, (dict, OwnHeader)) else "<key>"),
]


def _check_filled(order: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if not order:
        raise ValueError("has no carrier")
    return order


def _make_fault(key: str, reason: str) -> InitErrorDetails:
    return InitErrorDetails(
        type="value_error", loc=(key,) if key else (), input=None, ctx={"error": ValueError(reason)}
    )


def _repeat_fault(fault: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(
        type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=fault.get("ctx", {})
    )


def _find_repetitions(order: object) -> list[str]:
    keys = map(_key_of, order) if isinstance(order, (list, tuple)) else ()
    return [key for key, count in Counter(filter(None, keys)).items() if count > 1]


def _key_of(entry: object) -> str:
    """Returns the name of an entry of the order among the carriers; empty if it has none."""
    if isinstance(entry, OwnHeader):
        return entry.key
    header = entry.get("header") if isinstance(entry, Mapping) else None
    if isinstance(header, str):
        return f"header:{header.lower()}"
    return entry if isinstance(entry, str) else ""


def _find_idle_keys(fields: Mapping[str, Any]) -> list[str]:
    unchanged = fields["ids"] == "unchanged"
    idle = (
        (unchanged and fields["scope"] != "off", "ids: unchanged keeps no tenants apart; scope must be off"),
        (
            unchanged and fields["trajectory_scope"] == "run",
            "ids: unchanged keeps no runs apart; trajectory_scope must be none",
        ),
        (
            fields["subagents"] == "off" and fields["prompt_cache_key"] == "affinity",
            "subagents: off places nothing by prompt_cache_key",
        ),
        (
            fields["subagents"] == "off" and fields["agent_context"] == "affinity-only",
            "subagents: off places nothing by agent_context; leave it out of the order",
        ),
        (
            fields["agent_context"] == "affinity-only" and fields["trajectory_scope"] == "run",
            "agent_context: affinity-only reads no trajectory; trajectory_scope must be none",
        ),
    )
    return [reason for holds, reason in idle if holds]


class IdentityPolicy(PolicyPart):
    """What a conversation is called."""

    profile: Literal["default", "trtllm-serve", "dynamo"] = "default"
    """Gives the keys that are not written."""
    order: Annotated[tuple[Entry, ...], AfterValidator(_check_filled)] = DEFAULT_ORDER
    """The carriers to read, first choice first; others are not read."""
    scope: Literal["off", "weak", "all"] = "weak"
    subagents: Literal["off", "context", "both"] = "context"
    ids: Literal["verbatim", "derive_always", "unchanged"] = "verbatim"
    agent_context: Literal["conversation", "affinity-only"] = "conversation"
    trajectory_scope: Literal["none", "run"] = "none"
    prompt_cache_key: Literal["ignore", "affinity"] = "ignore"

    @model_validator(mode="wrap")
    @classmethod
    def _check_together(cls, content: Any, validate: ModelWrapValidatorHandler[IdentityPolicy]) -> Any:
        """Fills in from the profile, and tells what is wrong between keys beside what is wrong in them."""
        if not isinstance(content, Mapping):
            return validate(content)
        profile = content.get("profile", "default")
        preset = _PRESETS.get(profile, {}) if isinstance(profile, str) else {}
        content = {**preset, **content}
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        faults = []
        if twice := _find_repetitions(content.get("order")):
            faults.append(_make_fault("order", f"occurs twice: {', '.join(twice)}"))
        if idle := _find_idle_keys({**defaults, **content}):
            faults.append(_make_fault("", "; ".join(idle)))
        try:
            policy = validate(content)
        except ValidationError as error:
            faults = [*map(_repeat_fault, error.errors()), *faults]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return policy


def _check_time(value: Any) -> Any:
    # A bare number would be read as seconds since 1970.
    if isinstance(value, (int, float)):
        raise ValueError("is no time; write it as 2030-01-31T12:00:00Z")
    return value


class NextIdentityPolicy(IdentityPolicy):
    """The identity part that follows at a moment which all sidecars share."""

    effective_at: Annotated[AwareDatetime, BeforeValidator(_check_time)]
