"""Identity carriers: the places where a request can hold the name of its conversation.

The `*_carrier` modules read them, `resolution` checks whether a value is usable, and `catalogue` lists them
all. Not to be confused with OpenTelemetry's carrier, which is the whole set of headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from routing_hints.vocabulary import IdentitySource
from sidecar.model import Identity

FINAL_HEADER = "x-dynamo-session-final"
TENANT_HEADER = "x-tenant-id"


class Reading(NamedTuple):
    """The values of one carrier in a request, not trimmed."""

    name: str
    """The field that was read, as in `source_detail`."""
    session_id: str
    parent_id: str = ""
    final: bool = False
    run_id: str = ""
    """The run that `session_id` is unique within; empty if it needs none."""
    refusal: str = ""
    """Why the carrier rejects the value, as a token; empty if it may name a conversation."""
    remarks: tuple[str, ...] = ()
    """Tokens that Explain shows and that do not affect the decision."""


ReadCarrier: TypeAlias = Callable[[Identity, Mapping[str, str]], Reading | None]
"""Takes the request's carriers and its headers by lower-case name; returns None if the carrier is absent."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of the request fields that a carrier reads; header names in lower case."""

    headers: frozenset[str] = frozenset()
    metadata: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    """Prefixes of annotations."""
    per_request_headers: frozenset[str] = frozenset()
    """Headers that change with each request and never affect an id."""
    baggage: frozenset[str] = frozenset()
    """Members of the header `baggage`."""

    def __or__(self, other: Fields) -> Fields:
        """Returns the union."""
        return Fields(
            self.headers | other.headers,
            self.metadata | other.metadata,
            self.body | other.body,
            self.annotations | other.annotations,
            self.per_request_headers | other.per_request_headers,
            self.baggage | other.baggage,
        )


@dataclass(frozen=True, slots=True)
class Carrier:
    """One place where a request can hold a session id."""

    key: str
    """Its name in the policy's order."""
    name: str
    """The name that Explain shows if the request lacks it."""
    source: IdentitySource
    read: ReadCarrier
    fields: Fields = Fields()
    """Fields that affect the id; empty for a structured carrier, which a worker always sends."""
    parent_fields: Fields = Fields()
    """Fields that affect only the parent."""

    @property
    def is_structured(self) -> bool:
        """Whether the contract has a field of its own for it."""
        return self.fields == Fields()


def fold_header_names(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the headers by lower-case name.

    If a name arrives in two spellings, the one that sorts first wins, so that the result does not depend
    on the order of the map.
    """
    folded = {name.lower(): value for name, value in headers.items()}
    if len(folded) != len(headers):
        folded = {name.lower(): headers[name] for name in sorted(headers, reverse=True)}
    return folded


def read_object(text: str) -> Mapping[str, Any]:
    """Returns the JSON object in `text`, or an empty one if it holds anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def take_text(value: object) -> str:
    """Returns the value if it is text that UTF-8 can encode (no lone surrogates), else an empty string."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        return ""
    return value
