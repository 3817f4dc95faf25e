"""Which carrier names the conversation: the first one of the policy's order with a usable value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sidecar.identity.carrier import FINAL_HEADER, Carrier, Reading
from sidecar.identity.session_id import explain_unusable, is_endpoint_token
from sidecar.model import CarrierTrace, CarrierVerdict, ConversationHash, Identity, IdentitySource
from sidecar.policy.compiled import CompiledPolicy


class Claim(NamedTuple):
    """A usable session id and what its carrier says about it."""

    source: IdentitySource
    name: str
    session_id: str
    parent_id: str
    """Empty for none; never equal to `session_id`."""
    final: bool
    run_id: str = ""
    """What `session_id` and `parent_id` are unique within; empty where they stand for themselves."""


def resolve_claim(policy: CompiledPolicy, identity: Identity, headers: Mapping[str, str]) -> Claim | None:
    """Returns the claim of the first usable carrier, or None.

    Args:
        policy: gives the carriers in order.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
    """
    has_none = policy.carrier_headers.isdisjoint(headers)
    for carrier in policy.bare_carriers if has_none else policy.carriers:
        reading = carrier.read(identity, headers)
        if reading is not None and not _explain_refusal(carrier, reading, policy):
            return _make_claim(carrier, reading, policy, identity, headers)
    return None


def trace_carriers(
    policy: CompiledPolicy,
    identity: Identity,
    headers: Mapping[str, str],
    name_conversation: Callable[[Claim], tuple[ConversationHash, str]],
) -> tuple[CarrierTrace, ...]:
    """Returns what became of every carrier, in order.

    Args:
        policy: gives the carriers in order.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
        name_conversation: gives the hash of the conversation that a claim would name, and why its id
            would be derived.
    """
    traces = []
    verdict = CarrierVerdict.TAKEN
    for carrier in policy.carriers:
        reading = carrier.read(identity, headers)
        if reading is None:
            traces.append(CarrierTrace(carrier.source, carrier.name, CarrierVerdict.ABSENT))
            continue
        reason = _explain_refusal(carrier, reading, policy)
        if reason:
            traces.append(CarrierTrace(carrier.source, reading.name, CarrierVerdict.UNUSABLE, reason))
            continue
        claim = _make_claim(carrier, reading, policy, identity, headers)
        hashed, derivation = name_conversation(claim)
        remarks = _describe(claim, reading, derivation)
        traces.append(CarrierTrace(carrier.source, claim.name, verdict, "", hashed, remarks))
        verdict = CarrierVerdict.OUTRANKED
    return tuple(traces)


def _explain_refusal(carrier: Carrier, reading: Reading, policy: CompiledPolicy) -> str:
    if reading.refusal:
        return reading.refusal
    session_id = reading.session_id.strip()
    if policy.takes_any_value:
        return "" if session_id else "blank"
    reason = explain_unusable(session_id)
    if not reason and carrier.source is IdentitySource.HEADER and is_endpoint_token(session_id):
        return "endpoint-token"
    return reason


def _make_claim(
    carrier: Carrier,
    reading: Reading,
    policy: CompiledPolicy,
    identity: Identity,
    headers: Mapping[str, str],
) -> Claim:
    session_id = reading.session_id.strip()
    parent_id = reading.parent_id.strip()
    if parent_id and not _can_be_parent(parent_id, session_id):
        parent_id = ""
    for find_group in policy.groups if not parent_id else ():
        group = find_group(identity).strip()
        if _can_be_parent(group, session_id):
            parent_id = group
            break
    final = reading.final or headers.get(FINAL_HEADER, "").strip().lower() == "true"
    return Claim(carrier.source, reading.name, session_id, parent_id, final, reading.run_id)


def _can_be_parent(parent_id: str, session_id: str) -> bool:
    return parent_id != session_id and not explain_unusable(parent_id)


def _describe(claim: Claim, reading: Reading, derivation: str) -> tuple[str, ...]:
    remarks = (
        (derivation, bool(derivation)),
        ("has-parent", bool(claim.parent_id)),
        ("last-request", claim.final),
    )
    return (*(token for token, holds in remarks if holds), *reading.remarks)
