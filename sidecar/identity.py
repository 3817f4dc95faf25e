"""Which carrier names the conversation: the first one of the policy's order with a usable value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sidecar.carrier import FINAL_HEADER, Carrier
from sidecar.model import CarrierTrace, CarrierVerdict, ConversationHash, Identity, IdentitySource

_PLACEHOLDERS = frozenset({"null", "none", "undefined", "n/a", "unknown", "-"})
_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Claim:
    """A usable session id and what its carrier says about it."""

    source: IdentitySource
    name: str
    session_id: str
    parent_id: str
    """Empty for none; never equal to `session_id`."""
    final: bool


def resolve_claim(
    carriers: Iterable[Carrier], identity: Identity, headers: Mapping[str, str]
) -> Claim | None:
    """Returns the claim of the first usable carrier, or None.

    Args:
        carriers: in the policy's order.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
    """
    for carrier in carriers:
        claim, _, _ = _examine(carrier, identity, headers)
        if claim is not None:
            return claim
    return None


def trace_carriers(
    carriers: Iterable[Carrier],
    identity: Identity,
    headers: Mapping[str, str],
    hash_session: Callable[[str], ConversationHash],
) -> tuple[CarrierTrace, ...]:
    """Returns what became of every carrier, in order.

    Args:
        carriers: in the policy's order.
        identity: the request's carriers.
        headers: the request's headers by lower-case name.
        hash_session: gives the hash of the conversation that a session id would name.
    """
    traces = []
    verdict = CarrierVerdict.TAKEN
    for carrier in carriers:
        claim, name, reason = _examine(carrier, identity, headers)
        if claim is not None:
            hashed = hash_session(claim.session_id)
            traces.append(CarrierTrace(carrier.source, name, verdict, conversation_hash=hashed))
            verdict = CarrierVerdict.OUTRANKED
        elif reason is _ABSENT:
            traces.append(CarrierTrace(carrier.source, name, CarrierVerdict.ABSENT))
        else:
            traces.append(CarrierTrace(carrier.source, name, CarrierVerdict.UNUSABLE, reason))
    return tuple(traces)


def _examine(
    carrier: Carrier, identity: Identity, headers: Mapping[str, str]
) -> tuple[Claim | None, str, str]:
    """Returns the claim, or None and why; in the middle the name of what was read."""
    reading = carrier.read(identity, headers)
    if reading is None:
        return None, carrier.name, _ABSENT
    session_id = reading.session_id.strip()
    if not session_id:
        return None, reading.name, "blank"
    if session_id.lower() in _PLACEHOLDERS:
        return None, reading.name, "placeholder"
    parent_id = reading.parent_id.strip()
    if parent_id == session_id or parent_id.lower() in _PLACEHOLDERS:
        parent_id = ""
    final = reading.final or headers.get(FINAL_HEADER, "").strip().lower() == "true"
    return Claim(carrier.source, reading.name, session_id, parent_id, final), reading.name, ""
