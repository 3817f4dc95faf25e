"""Carriers in members of the W3C `baggage` header (W3C Recommendation "Baggage" of 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from routing_hints import tokens
from routing_hints.vocabulary import IdentitySource
from sidecar.identity.carrier import Carrier, Fields, Reading
from sidecar.model import Identity

BAGGAGE_HEADER = "baggage"


def make_baggage_carrier(member: str) -> Carrier:
    """Returns the carrier of one member, whose value is percent-encoded UTF-8."""
    name = f"baggage:{member}"

    def read(_identity: Identity, headers: Mapping[str, str]) -> Reading | None:
        baggage = headers.get(BAGGAGE_HEADER)
        value = None if baggage is None else _find_member(baggage, member)
        if value is None:
            return None
        try:
            return Reading(name, unquote(value, errors="strict"))
        except UnicodeDecodeError:
            # Replacing what can't be decoded would make different values equal.
            return Reading(name, "", refusal=tokens.MALFORMED)

    fields = Fields(frozenset({BAGGAGE_HEADER}), baggage=frozenset({member}))
    return Carrier(name, name, IdentitySource.BAGGAGE, read, fields)


def _find_member(baggage: str, member: str) -> str | None:
    for part in baggage.split(","):
        key, separator, rest = part.partition("=")
        if separator and key.strip() == member:
            return rest.partition(";")[0].strip()
    return None
