"""Holds the policy in force."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sidecar.policy.compiled import ClientView, CompiledPolicy, merge_views
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """A policy in force."""

    policy: Policy
    compiled: CompiledPolicy
    view: ClientView
    """The view for worker clients; has the names of both identity parts while a change is scheduled."""
    origin: str
    """`embedded` or the path of its file."""
    loaded_at: float
    """Seconds since the epoch."""
    changes_at: float | None
    """When the scheduled identity change takes effect, in seconds since the epoch; None for never."""


class PolicyHolder:
    """Holds the policy in force; each decision reads `current` once.

    Attributes:
        current: the policy in force.
        last_error: why the newest file was rejected, one problem per line; empty if it was not.
    """

    def __init__(self, current: ActivePolicy) -> None:
        self.current = current
        self.last_error = ""
        self._changed = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """An event that the next `replace` sets."""
        return self._changed

    def replace(self, active: ActivePolicy) -> None:
        """Puts another policy in force."""
        self.current = active
        self._changed.set()
        self._changed = asyncio.Event()


def activate(
    policy: Policy, origin: str = EMBEDDED, *, now_s: float | None = None, loaded_at: float | None = None
) -> ActivePolicy:
    """Returns the policy with the identity part that is in force at a time.

    Args:
        policy: the policy as written.
        origin: `embedded` or the path of its file.
        now_s: seconds since the epoch; None for the present.
        loaded_at: when the file was read, in seconds since the epoch; None for `now_s`.
    """
    if now_s is None:
        now_s = time.time()
    compiled = compile_policy(policy, policy.identity_at(now_s))
    view, changes_at = compiled.view, policy.changes_at(now_s)
    if changes_at is not None:
        view = merge_views(view, compile_policy(policy, policy.identity_at(changes_at)).view)
    return ActivePolicy(policy, compiled, view, origin, now_s if loaded_at is None else loaded_at, changes_at)
