"""Schema of the policy's identity part: how conversations are named. Equal parts give equal ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
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
from sidecar.identity.header_carrier import check_header_name


class PolicyPart(BaseModel):
    """A mapping of the policy file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def _check_profile(name: str) -> str:
    if name not in _PRESETS:
        raise ValueError(f"is not one of {', '.join(_PRESETS)}")
    return name


def _check_key(key: str) -> str:
    if key not in CARRIERS:
        raise ValueError(
            "is not a carrier; write a header of your own as `{header: name}`; the carriers are "
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
    """A custom header that names the conversation."""

    header: Annotated[str, AfterValidator(_check_own_header)]
    parent_header: Annotated[str, AfterValidator(check_header_name)] | None = None
    """Names the parent conversation."""

    @model_validator(mode="after")
    def _check_parent(self) -> OwnHeader:
        if self.parent_header == self.header:
            raise ValueError("parent_header equals header")
        return self

    @property
    def key(self) -> str:
        """Its carrier key."""
        return f"header:{self.header}"


Entry: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_check_key), Tag("<key>")] | Annotated[OwnHeader, Tag("<own>")],
    Discriminator(lambda value: "<own>" if isinstance(value, (dict, OwnHeader)) else "<key>"),
]


def _check_filled(order: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if not order:
        raise ValueError("has no carrier")
    return order


def _make_problem(key: str, reason: str) -> InitErrorDetails:
    return InitErrorDetails(
        type="value_error", loc=(key,) if key else (), input=None, ctx={"error": ValueError(reason)}
    )


def _copy_problem(problem: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(
        type=problem["type"], loc=problem["loc"], input=problem["input"], ctx=problem.get("ctx", {})
    )


def _find_repetitions(order: object) -> list[str]:
    keys = map(_key_of, order) if isinstance(order, (list, tuple)) else ()
    return [key for key, count in Counter(filter(None, keys)).items() if count > 1]


def _key_of(entry: object) -> str:
    """Returns the carrier key of an entry of the order; empty if it has none."""
    if isinstance(entry, OwnHeader):
        return entry.key
    header = entry.get("header") if isinstance(entry, Mapping) else None
    if isinstance(header, str):
        return f"header:{header.lower()}"
    return entry if isinstance(entry, str) else ""


def _find_conflicts(fields: Mapping[str, Any]) -> list[str]:
    unchanged = fields["ids"] == "unchanged"
    conflicts = (
        (unchanged and fields["scope"] != "off", "ids: unchanged ignores the tenant; scope must be off"),
        (
            unchanged and fields["trajectory_scope"] == "run",
            "ids: unchanged ignores the run; trajectory_scope must be none",
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
    return [reason for holds, reason in conflicts if holds]


class IdentityPolicy(PolicyPart):
    """Which carriers are read, and how conversations are named."""

    profile: Annotated[str, AfterValidator(_check_profile)] = "default"
    """Sets the defaults of the keys that the file omits."""
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
        """Fills in the profile's keys, and reports conflicts between keys together with invalid keys."""
        if not isinstance(content, Mapping):
            return validate(content)
        profile = content.get("profile", "default")
        preset = _PRESETS.get(profile, {}) if isinstance(profile, str) else {}
        content = {**preset, **content}
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        problems = []
        if twice := _find_repetitions(content.get("order")):
            problems.append(_make_problem("order", f"occurs twice: {', '.join(twice)}"))
        if conflicts := _find_conflicts({**defaults, **content}):
            problems.append(_make_problem("", "; ".join(conflicts)))
        try:
            policy = validate(content)
        except ValidationError as error:
            problems = [*map(_copy_problem, error.errors()), *problems]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return policy


def _check_time(value: Any) -> Any:
    # A bare number would be read as seconds since 1970.
    if isinstance(value, (int, float)):
        raise ValueError("is not a time; write it as 2030-01-31T12:00:00Z")
    return value


class NextIdentityPolicy(IdentityPolicy):
    """An identity part that replaces `identity` on all sidecars at the same time."""

    effective_at: Annotated[AwareDatetime, BeforeValidator(_check_time)]
