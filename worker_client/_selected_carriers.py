"""Selects the carriers of a request that the sidecar's policy reads: only these are sent.

Sending the rest would cost time and expose data that the sidecar does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from routing_hints import tokens
from routing_hints.limits import MAX_CARRIER_BYTES
from worker_client._model import ClientPolicy
from worker_client._request import RequestFacts
from worker_client._untrusted_input import read_body, read_text

_Pairs = tuple[tuple[str, str], ...]
_Entry = TypeVar("_Entry", str, "tuple[str, str]")
# More than the tags and lengths around a name and its value take on the wire.
_ENTRY_BYTES = 16
_BAGGAGE = "baggage"


class SelectedCarriers(NamedTuple):
    """Names and values; empty values are left out."""

    headers: _Pairs = ()
    """Names in lower case."""
    per_request_headers: _Pairs = ()
    """Those that change with each request and never affect an id."""
    metadata: _Pairs = ()
    body: _Pairs = ()
    """Names are dotted paths."""
    annotations: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """At least the bytes that they take on the wire."""
        pairs = (self.headers, self.per_request_headers, self.metadata, self.body)
        return sum(map(_measure, pairs)) + _measure(self.annotations)


def select_carriers(facts: RequestFacts, policy: ClientPolicy) -> SelectedCarriers:
    """Returns the carriers that `policy` reads; adds to `facts.notices` what can't be sent.

    What would exceed the contract's size limit is dropped, the longest values first: names of conversations
    are short. Of the annotations with one prefix the sidecar reads the first, so no other is sent.
    """
    headers, metadata, body, notices = facts.headers, facts.metadata, facts.body, facts.notices
    named = [(name, value) for name in policy.headers if (value := headers.get(name))]
    if policy.baggage and (baggage := _pick_baggage(headers.get(_BAGGAGE, ""), policy.baggage)):
        named.append((_BAGGAGE, baggage))
    carriers = SelectedCarriers(
        tuple(named),
        tuple([(name, value) for name in policy.per_request_headers if (value := headers.get(name))]),
        _pick(policy.metadata, lambda name: read_text(metadata.get(name), notices)) if metadata else (),
        _pick(policy.body, lambda path: read_body(body, path, notices)) if body else (),
        _pick_annotations(facts.annotations, policy.annotations) if facts.annotations else (),
    )
    if _measure_structured(facts) + carriers.size_bytes <= MAX_CARRIER_BYTES:
        return carriers
    if tokens.CARRIERS_OVER_LIMIT_DROPPED not in notices:
        notices.append(tokens.CARRIERS_OVER_LIMIT_DROPPED)
    return _trim(facts, carriers)


def _pick(names: tuple[str, ...], read: Callable[[str], str]) -> _Pairs:
    return tuple([(name, value) for name in names if (value := read(name))])


def _pick_baggage(header: str, members: tuple[str, ...]) -> str:
    """Returns the members of the header that can name a conversation; the rest changes with each request."""
    parts = (part.strip() for part in header.split(","))
    return ",".join(part for part in parts if part.partition("=")[0].strip() in members)


def _pick_annotations(annotations: tuple[str, ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    firsts = (next((entry for entry in annotations if entry.startswith(prefix)), None) for prefix in prefixes)
    return tuple([entry for entry in firsts if entry is not None])


def _measure_structured(facts: RequestFacts) -> int:
    agent, control = facts.agent_context, facts.session_control
    size_bytes = _measure((facts.conversation_id,))
    if agent is not None:
        size_bytes += _measure(
            (agent.session_id, agent.parent_session_id, agent.trajectory_id, agent.parent_trajectory_id)
        )
    if control is not None:
        size_bytes += _measure((control.session_id, control.action))
    return size_bytes


def _measure(entries: Iterable[str | tuple[str, str]]) -> int:
    """Returns at least the bytes that entries take on the wire."""
    size_bytes = 0
    for entry in entries:
        for text in (entry,) if isinstance(entry, str) else entry:
            size_bytes += _ENTRY_BYTES + (len(text) if text.isascii() else len(text.encode()))
    return size_bytes


def _trim(facts: RequestFacts, carriers: SelectedCarriers) -> SelectedCarriers:
    if facts.agent_context is not None and _measure_structured(facts) > MAX_CARRIER_BYTES:
        facts.agent_context = replace(facts.agent_context, parent_session_id="", parent_trajectory_id="")
    if _measure_structured(facts) > MAX_CARRIER_BYTES:
        facts.session_control = None
    room_bytes = MAX_CARRIER_BYTES - _measure_structured(facts)
    longest_bytes = 0
    sizes = sorted(_measure((entry,)) for entries in carriers for entry in entries)
    # Entries of equal length stand or fall together, so that no order of theirs matters.
    for size_bytes, equals in groupby(sizes):
        room_bytes -= sum(equals)
        if room_bytes < 0:
            break
        longest_bytes = size_bytes

    def fit(entries: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
        return tuple([entry for entry in entries if _measure((entry,)) <= longest_bytes])

    return SelectedCarriers(
        fit(carriers.headers),
        fit(carriers.per_request_headers),
        fit(carriers.metadata),
        fit(carriers.body),
        fit(carriers.annotations),
    )
