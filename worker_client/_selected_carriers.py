"""What a request holds in the carriers that the sidecar's policy reads: the part of it that is sent.

The rest of a request is nobody else's business, and would cost time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from worker_client._model import ClientPolicy
from worker_client._request import RequestFacts
from worker_client._untrusted_input import read_body, read_text

_Pairs = tuple[tuple[str, str], ...]


class Carried(NamedTuple):
    """Names and values, in the policy's order; what is empty is left out."""

    headers: _Pairs = ()
    """In lower case."""
    passing_headers: _Pairs = ()
    """Those that change with each request and never change an id."""
    metadata: _Pairs = ()
    body: _Pairs = ()
    """By dotted path."""
    annotations: tuple[str, ...] = ()


def pick_carriers(facts: RequestFacts, policy: ClientPolicy) -> Carried:
    """Returns what `policy` reads of a request; notes in `facts` what can't be sent."""
    headers, metadata, body, notices = facts.headers, facts.metadata, facts.body, facts.notices
    return Carried(
        tuple([(name, value) for name in policy.headers if (value := headers.get(name))]),
        tuple([(name, value) for name in policy.passing_headers if (value := headers.get(name))]),
        _pick(policy.metadata, lambda name: read_text(metadata.get(name), notices)) if metadata else (),
        _pick(policy.body, lambda path: read_body(body, path, notices)) if body else (),
        tuple([entry for entry in facts.annotations if entry.startswith(policy.annotations)]),
    )


def _pick(names: tuple[str, ...], read: Callable[[str], str]) -> _Pairs:
    return tuple([(name, value) for name in names if (value := read(name))])
