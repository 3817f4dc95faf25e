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
    Field,
    Tag,
    model_validator,
)

from sidecar.catalogue import CARRIERS, DEFAULT_ORDER, DYNAMO_ORDER, NEVER_HEADERS, TRTLLM_SERVE_ORDER
from sidecar.header_name import check_header_name
from sidecar.policy_part import PolicyPart

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


def key_of(entry: str | OwnHeader) -> str:
    """Returns the name of an entry of the order among the carriers."""
    return entry if isinstance(entry, str) else entry.key


def _check_distinct(order: tuple[Entry, ...]) -> tuple[Entry, ...]:
    twice = [key for key, count in Counter(map(key_of, order)).items() if count > 1]
    if twice:
        raise ValueError(f"occurs twice: {', '.join(twice)}")
    return order


class IdentityPolicy(PolicyPart):
    """What a conversation is called."""

    profile: Literal["default", "trtllm-serve", "dynamo"] = "default"
    """Gives the keys that are not written."""
    order: Annotated[tuple[Entry, ...], AfterValidator(_check_distinct), Field(min_length=1)] = DEFAULT_ORDER
    """The carriers to read, first choice first; others are not read."""
    scope: Literal["off", "weak", "all"] = "weak"
    subagents: Literal["off", "context", "both"] = "context"
    ids: Literal["verbatim", "derive_always", "unchanged"] = "verbatim"
    agent_context: Literal["conversation", "affinity-only"] = "conversation"
    trajectory_scope: Literal["none", "run"] = "none"
    prompt_cache_key: Literal["ignore", "affinity"] = "ignore"

    @model_validator(mode="before")
    @classmethod
    def _fill_from_profile(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        profile = content.get("profile", "default")
        preset = _PRESETS.get(profile, {}) if isinstance(profile, str) else {}
        return {**preset, **content}

    @model_validator(mode="after")
    def _check_combination(self) -> IdentityPolicy:
        unchanged = self.ids == "unchanged"
        idle = (
            (unchanged and self.scope != "off", "ids: unchanged keeps no tenants apart; scope must be off"),
            (
                unchanged and self.trajectory_scope == "run",
                "ids: unchanged keeps no runs apart; trajectory_scope must be none",
            ),
            (
                self.subagents == "off" and self.prompt_cache_key == "affinity",
                "subagents: off places nothing by prompt_cache_key",
            ),
            (
                self.subagents == "off" and self.agent_context == "affinity-only",
                "subagents: off places nothing by agent_context; leave it out of the order",
            ),
            (
                self.agent_context == "affinity-only" and self.trajectory_scope == "run",
                "agent_context: affinity-only reads no trajectory; trajectory_scope must be none",
            ),
        )
        reasons = [reason for holds, reason in idle if holds]
        if reasons:
            raise ValueError("; ".join(reasons))
        return self


def _check_time(value: Any) -> Any:
    # A bare number would be read as seconds since 1970.
    if isinstance(value, (int, float)):
        raise ValueError("is no time; write it as 2030-01-31T12:00:00Z")
    return value


class NextIdentityPolicy(IdentityPolicy):
    """The identity part that follows at a moment which all sidecars share."""

    effective_at: Annotated[AwareDatetime, BeforeValidator(_check_time)]
