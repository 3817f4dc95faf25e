"""Keeps the policy in force that its file and the clock say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from sidecar.fault import ConfigurationError
from sidecar.policy.file import load_policy
from sidecar.policy.file_watch import FileWatch
from sidecar.policy.holder import ActivePolicy, PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.server.error_boundary import DefectLog
from sidecar.telemetry.counters import Counters, Labels
from sidecar.telemetry.logs import configure_logging

POLL_INTERVAL_S = 1.0
"""A change is in force after two of these at most."""


class PolicyReloader:
    """Reloads on a change of the file, also where a symbolic link above it is swapped, and when asked to.

    The operational part is in force at once, a coming identity part at its `effective_at`. A file that can't
    be used changes nothing: the log, the counters and `PolicyHolder.last_error` say why.

    Args:
        holder: gets the policy.
        path: the policy file; None for the embedded policy.
        counters: counts reloads.
        defects: is told what no rule accounts for.
        clock: gives the seconds since the epoch.
        interval_s: seconds between two looks at the file.
    """

    def __init__(
        self,
        holder: PolicyHolder,
        path: Path | None,
        counters: Counters,
        defects: DefectLog,
        *,
        clock: Callable[[], float] = time.time,
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._holder = holder
        self._counters = counters
        self._defects = defects
        self._clock = clock
        self._interval_s = interval_s
        self._watch = FileWatch(path) if path is not None else None
        self._asked = asyncio.Event()
        self._log = structlog.get_logger("sidecar")
        counters.gauge("policy_rejected", self._show_rejection)

    def ask(self) -> None:
        """Reloads soon, whether the file has changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        wait_s = self._next_look_s()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), wait_s)
            is_asked = self._asked.is_set()
            self._asked.clear()
            wait_s = self._interval_s
            try:
                await self.look(is_asked=is_asked)
                wait_s = self._next_look_s()
            except Exception as error:  # noqa: BLE001, one failed look must not be the last
                self._defects.report(error)

    async def look(self, *, is_asked: bool = False) -> None:
        """Does what the clock and the file call for now.

        Args:
            is_asked: reads the file even if it has not changed.
        """
        self._swap_identity()
        if self._watch is not None:
            if is_asked or await asyncio.to_thread(self._watch.has_changed):
                await self._reload(self._watch, is_asked=is_asked)
        elif is_asked:
            self._log.warning("policy_not_reloaded", reason="the embedded policy has no file")

    def _next_look_s(self) -> float:
        changes_at = self._holder.current.changes_at
        if changes_at is None:
            return self._interval_s
        return min(self._interval_s, max(changes_at - self._clock(), 0.0))

    def _swap_identity(self) -> None:
        current = self._holder.current
        if current.changes_at is None or self._clock() < current.changes_at:
            return
        active = activate(current.policy, current.origin, now_s=self._clock(), loaded_at=current.loaded_at)
        self._holder.replace(active)
        self._counters.add("identity_changes")
        self._log.info(
            "identity_changed",
            policy_revision=active.compiled.revision,
            identity_epoch=active.compiled.identity_epoch,
            identity_epoch_before=current.compiled.identity_epoch,
        )

    async def _reload(self, watch: FileWatch, *, is_asked: bool) -> None:
        await asyncio.to_thread(watch.take)
        try:
            policy = await asyncio.to_thread(load_policy, watch.path)
        except ConfigurationError as error:
            self._reject(watch.path, error)
            return
        self._holder.last_error = ""
        if policy != self._holder.current.policy:
            self._accept(policy)
        elif is_asked:
            self._counters.add("policy_reloads", ("outcome", "unchanged"))
            self._log.info("policy_unchanged", **_describe(self._holder.current))

    def _accept(self, policy: Policy) -> None:
        before = self._holder.current
        active = activate(policy, before.origin, now_s=self._clock())
        self._holder.replace(active)
        self._counters.add("policy_reloads", ("outcome", "loaded"))
        if policy.operational.logging != before.policy.operational.logging:
            configure_logging(policy.operational.logging)
        self._log.info("policy_loaded", **_describe(active))
        if active.compiled.identity_epoch != before.compiled.identity_epoch:
            self._counters.add("identity_changes")
            self._log.warning(
                "identity_changed_at_once",
                identity_epoch=active.compiled.identity_epoch,
                identity_epoch_before=before.compiled.identity_epoch,
                change="next_identity with effective_at lets all sidecars change together",
            )

    def _reject(self, path: Path, error: ConfigurationError) -> None:
        self._holder.last_error = "\n".join(map(str, error.faults))
        self._counters.add("policy_reloads", ("outcome", "rejected"))
        self._log.error(
            "policy_rejected",
            policy=str(path),
            faults=[str(fault) for fault in error.faults],
            policy_revision=self._holder.current.compiled.revision,
        )

    def _show_rejection(self) -> Iterator[tuple[Labels, float]]:
        yield (), 1 if self._holder.last_error else 0


def _describe(active: ActivePolicy) -> dict[str, object]:
    described: dict[str, object] = {
        "policy": active.origin,
        "policy_revision": active.compiled.revision,
        "identity_epoch": active.compiled.identity_epoch,
    }
    if active.changes_at is not None:
        described["identity_changes_at"] = active.changes_at
    return described
