"""What an identity carrier is: a place where a request can hold the name of its conversation.

A carrier is read here and in the modules of the families; whether its value can name a conversation is
judged in `identity`, and all of them are listed in `catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sidecar.model import Identity, IdentitySource

FINAL_HEADER = "x-dynamo-session-final"
TENANT_HEADER = "x-tenant-id"


class Reading(NamedTuple):
    """What a request holds in one carrier, untrimmed."""

    name: str
    """The field that was read, as in `source_detail`."""
    session_id: str
    parent_id: str = ""
    final: bool = False
    run_id: str = ""
    """What `session_id` is unique within; empty where it stands for itself."""
    refusal: str = ""
    """Why the carrier itself knows that the value names no conversation, as a token; empty if it may."""
    remarks: tuple[str, ...] = ()
    """What else the carrier said and nothing is decided by, for people."""


ReadCarrier: TypeAlias = Callable[[Identity, Mapping[str, str]], Reading | None]
"""Takes the carriers and the headers by lower-case name; None if the request has no such carrier."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of what is read of a request, header names in lower case."""

    headers: frozenset[str] = frozenset()
    metadata: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    """Prefixes."""
    passing_headers: frozenset[str] = frozenset()
    """Headers that change with each request and never change an id."""

    def __or__(self, other: Fields) -> Fields:
        """Returns the names of both."""
        return Fields(
            self.headers | other.headers,
            self.metadata | other.metadata,
            self.body | other.body,
            self.annotations | other.annotations,
            self.passing_headers | other.passing_headers,
        )


@dataclass(frozen=True, slots=True)
class Carrier:
    """One place where a session id can be."""

    key: str
    """Its name in the policy's order."""
    name: str
    """Its name in a trace where the request has none."""
    source: IdentitySource
    read: ReadCarrier
    fields: Fields = Fields()
    """What can change the id; empty for a structured carrier, which a worker always sends."""
    parent_fields: Fields = Fields()
    """What can only change the parent."""

    @property
    def is_structured(self) -> bool:
        """Whether it is a message of its own in the contract."""
        return self.fields == Fields()


def fold_header_names(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the headers by lower-case name.

    Where two spellings of one name arrive, the spelling that sorts first wins, so that the result does
    not depend on the order of the map.
    """
    folded = {name.lower(): value for name, value in headers.items()}
    if len(folded) != len(headers):
        folded = {name.lower(): headers[name] for name in sorted(headers, reverse=True)}
    return folded
