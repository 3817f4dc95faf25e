"""Reloads the policy when its file changes, on request, and at a scheduled identity change."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from routing_hints.errors import ConfigurationError
from routing_hints.metrics import LabelValues, MetricStore
from sidecar.policy.file import load_policy
from sidecar.policy.file_watch import FileWatch
from sidecar.policy.holder import ActivePolicy, PolicyHolder, activate
from sidecar.policy.schema import Policy
from sidecar.telemetry import metrics
from sidecar.telemetry.internal_error_log import InternalErrorLog
from sidecar.telemetry.logs import configure_logging

POLL_INTERVAL_S = 1.0
"""Seconds between two polls of the file; a change is loaded after two polls at most."""


class PolicyReloader:
    """Reloads when the file changes, a swapped symbolic link above it included, and on request.

    The operational part takes effect at once, `next_identity` at its `effective_at`. An invalid file changes
    nothing: the log, the metrics and `PolicyHolder.last_error` report the problems.

    Args:
        holder: gets each new policy.
        path: the policy file; None for the embedded policy.
        store: gets the metrics.
        internal_errors: gets unexpected exceptions.
        clock: returns seconds since the epoch.
        interval_s: seconds between two polls of the file.
    """

    def __init__(
        self,
        holder: PolicyHolder,
        path: Path | None,
        store: MetricStore,
        internal_errors: InternalErrorLog,
        *,
        clock: Callable[[], float] = time.time,
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._holder = holder
        self._store = store
        self._internal_errors = internal_errors
        self._clock = clock
        self._interval_s = interval_s
        self._watch = FileWatch(path) if path is not None else None
        self._requested = asyncio.Event()
        self._log = structlog.get_logger("sidecar")
        store.set_reader(metrics.POLICY_REJECTED, self._show_rejection)

    def request_reload(self) -> None:
        """Requests a reload, whether the file has changed or not."""
        self._requested.set()

    async def run(self) -> None:
        """Polls until cancelled."""
        wait_s = self._next_poll_s()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._requested.wait(), wait_s)
            is_requested = self._requested.is_set()
            self._requested.clear()
            wait_s = self._interval_s
            try:
                await self.poll(is_requested=is_requested)
                wait_s = self._next_poll_s()
            except Exception as error:  # noqa: BLE001, a failed poll must not be the last
                self._internal_errors.report(error)

    async def poll(self, *, is_requested: bool = False) -> None:
        """Applies a due identity change, and loads the file if it has changed.

        Args:
            is_requested: whether to load the file even if it has not changed.
        """
        self._swap_identity()
        if self._watch is not None:
            if is_requested or await asyncio.to_thread(self._watch.has_changed):
                await self._reload(self._watch, is_requested=is_requested)
        elif is_requested:
            self._log.warning("policy_not_reloaded", reason="the embedded policy has no file")

    def _next_poll_s(self) -> float:
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
        self._store.add(metrics.IDENTITY_CHANGES)
        self._log.info(
            "identity_changed",
            policy_revision=active.compiled.revision,
            identity_epoch=active.compiled.identity_epoch,
            identity_epoch_before=current.compiled.identity_epoch,
        )

    async def _reload(self, watch: FileWatch, *, is_requested: bool) -> None:
        await asyncio.to_thread(watch.mark_loaded)
        try:
            policy = await asyncio.to_thread(load_policy, watch.path)
        except ConfigurationError as error:
            self._reject(watch.path, error)
            return
        self._holder.last_error = ""
        if policy != self._holder.current.policy:
            self._accept(policy)
        elif is_requested:
            self._store.add(metrics.POLICY_RELOADS, "unchanged")
            self._log.info("policy_unchanged", **_describe(self._holder.current))

    def _accept(self, policy: Policy) -> None:
        before = self._holder.current
        active = activate(policy, before.origin, now_s=self._clock())
        self._holder.replace(active)
        self._store.add(metrics.POLICY_RELOADS, "loaded")
        if policy.operational.logging != before.policy.operational.logging:
            configure_logging(policy.operational.logging.level, policy.operational.logging.format)
        self._log.info("policy_loaded", **_describe(active))
        if active.compiled.identity_epoch != before.compiled.identity_epoch:
            self._store.add(metrics.IDENTITY_CHANGES)
            self._log.warning(
                "identity_policy_changed_without_schedule",
                identity_epoch=active.compiled.identity_epoch,
                identity_epoch_before=before.compiled.identity_epoch,
                hint="next_identity with effective_at lets all sidecars change together",
            )

    def _reject(self, path: Path, error: ConfigurationError) -> None:
        self._holder.last_error = "\n".join(map(str, error.problems))
        self._store.add(metrics.POLICY_RELOADS, "rejected")
        self._log.error(
            "policy_rejected",
            policy=str(path),
            problems=[str(problem) for problem in error.problems],
            policy_revision=self._holder.current.compiled.revision,
        )

    def _show_rejection(self) -> Iterator[tuple[LabelValues, float]]:
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
