"""The policy in force, for everybody who decides or tells others of it."""

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
    """For the workers' clients; has the names of two identity parts while a change is coming."""
    origin: str
    """`embedded` or the path of its file."""
    loaded_at: float
    """Seconds since the epoch."""
    changes_at: float | None
    """When another identity part takes over, in seconds since the epoch; None for never."""


class PolicyHolder:
    """Gives the policy in force to whoever decides; each decision asks once.

    Attributes:
        current: the policy in force.
        last_error: why the newest file was refused, one fault a line; empty if it was not.
    """

    def __init__(self, current: ActivePolicy) -> None:
        self.current = current
        self.last_error = ""
        self._changed = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """Is set at the next `replace`."""
        return self._changed

    def replace(self, active: ActivePolicy) -> None:
        """Puts another policy in force."""
        self.current = active
        self._changed.set()
        self._changed = asyncio.Event()


def activate(
    policy: Policy, origin: str = EMBEDDED, *, now_s: float | None = None, loaded_at: float | None = None
) -> ActivePolicy:
    """Returns the policy as it is in force at a time.

    Args:
        policy: as written.
        origin: `embedded` or the path of its file.
        now_s: seconds since the epoch; None for the present.
        loaded_at: when the file was read, if that was earlier.
    """
    if now_s is None:
        now_s = time.time()
    compiled = compile_policy(policy, policy.identity_at(now_s))
    view, changes_at = compiled.view, policy.changes_at(now_s)
    if changes_at is not None:
        view = merge_views(view, compile_policy(policy, policy.identity_at(changes_at)).view)
    return ActivePolicy(policy, compiled, view, origin, now_s if loaded_at is None else loaded_at, changes_at)
