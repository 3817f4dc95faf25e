"""Selects the carrier that names the conversation: the first in the policy's order with a usable value."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import NamedTuple

from routing_hints import tokens
from routing_hints.conversation_id import ConversationHash, explain_unusable
from routing_hints.vocabulary import CarrierVerdict, IdentitySource
from sidecar.identity.carrier import FINAL_HEADER, Carrier, Reading
from sidecar.identity.rules import IdentityRules
from sidecar.model import CarrierTrace, Identity

# AIBrix sends `address:port` of a worker in base64 as `x-session-id`.
# Source: vllm-project/aibrix#2484. The longest is an IPv6 address with a port of five digits.
_BASE64_ENDPOINT = re.compile("[A-Za-z0-9+/]{10,63}={0,2}")
_ENDPOINT = re.compile(rb"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:]{2,45}\]):[0-9]{1,5}")


class Claim(NamedTuple):
    """A usable session id and the other values of its carrier."""

    source: IdentitySource
    name: str
    session_id: str
    parent_id: str
    """Empty for none; never equal to `session_id`."""
    final: bool
    run_id: str = ""
    """The run that `session_id` and `parent_id` are unique within; empty if they need none."""


def resolve_claim(rules: IdentityRules, identity: Identity, headers: Mapping[str, str]) -> Claim | None:
    """Returns the claim of the first usable carrier, or None.

    Args:
        rules: the identity part of the policy.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
    """
    has_header = not rules.carrier_headers.isdisjoint(headers)
    for carrier in rules.carriers if has_header else rules.headerless_carriers:
        reading = carrier.read(identity, headers)
        if reading is not None and not _explain_refusal(carrier, reading, rules):
            return _make_claim(carrier, reading, rules, identity, headers)
    return None


def trace_carriers(
    rules: IdentityRules,
    identity: Identity,
    headers: Mapping[str, str],
    name_conversation: Callable[[Claim], tuple[ConversationHash, str]],
) -> tuple[CarrierTrace, ...]:
    """Returns the verdict on every carrier, in order.

    Args:
        rules: the identity part of the policy.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
        name_conversation: returns the hash of the conversation that a claim names, and why its id is
            derived, as a token.
    """
    traces = []
    verdict = CarrierVerdict.TAKEN
    for carrier in rules.carriers:
        reading = carrier.read(identity, headers)
        if reading is None:
            traces.append(CarrierTrace(carrier.source, carrier.name, CarrierVerdict.ABSENT))
            continue
        reason = _explain_refusal(carrier, reading, rules)
        if reason:
            traces.append(CarrierTrace(carrier.source, reading.name, CarrierVerdict.UNUSABLE, reason))
            continue
        claim = _make_claim(carrier, reading, rules, identity, headers)
        hashed, derivation = name_conversation(claim)
        remarks = _list_remarks(claim, reading, derivation)
        traces.append(CarrierTrace(carrier.source, claim.name, verdict, "", hashed, remarks))
        verdict = CarrierVerdict.OUTRANKED
    return tuple(traces)


def _explain_refusal(carrier: Carrier, reading: Reading, rules: IdentityRules) -> str:
    if reading.refusal:
        return reading.refusal
    session_id = reading.session_id.strip()
    if rules.accepts_placeholders:
        return "" if session_id else tokens.BLANK
    reason = explain_unusable(session_id)
    if not reason and carrier.source is IdentitySource.HEADER and _is_endpoint_token(session_id):
        return tokens.ENDPOINT_TOKEN
    return reason


def _make_claim(
    carrier: Carrier,
    reading: Reading,
    rules: IdentityRules,
    identity: Identity,
    headers: Mapping[str, str],
) -> Claim:
    session_id = reading.session_id.strip()
    parent_id = reading.parent_id.strip()
    if parent_id and not _can_be_parent(parent_id, session_id):
        parent_id = ""
    for find_parent in rules.parent_fallbacks if not parent_id else ():
        fallback = find_parent(identity).strip()
        if _can_be_parent(fallback, session_id):
            parent_id = fallback
            break
    final = reading.final or headers.get(FINAL_HEADER, "").strip().lower() == "true"
    return Claim(carrier.source, reading.name, session_id, parent_id, final, reading.run_id)


def _can_be_parent(parent_id: str, session_id: str) -> bool:
    return parent_id != session_id and not explain_unusable(parent_id)


def _list_remarks(claim: Claim, reading: Reading, derivation: str) -> tuple[str, ...]:
    remarks = (
        (derivation, bool(derivation)),
        (tokens.HAS_PARENT, bool(claim.parent_id)),
        (tokens.LAST_REQUEST, claim.final),
    )
    return (*(token for token, holds in remarks if holds), *reading.remarks)


def _is_endpoint_token(value: str) -> bool:
    """Returns whether a value is a worker's address, which all conversations of that worker share."""
    if len(value) % 4 or not _BASE64_ENDPOINT.fullmatch(value):
        return False
    try:
        return bool(_ENDPOINT.fullmatch(b64decode(value, validate=True)))
    except ValueError:
        return False
