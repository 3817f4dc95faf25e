"""Writes the client's log lines: each once per process or once per outage, never once per request."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import structlog

from routing_hints import tokens
from routing_hints.vocabulary import Phase, RankDirective, RankSource
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams
from worker_client._model import Decision


class _SafeLog:
    """The worker's own log. It may raise, as on a closed stdout, which must not affect a request."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def info(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(Exception):
            self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(Exception):
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(Exception):
            self._log.error(event, **fields)


class OnceLogger:
    """Writes to structlog, configured by the worker; this library configures nothing."""

    def __init__(self, log: Any = None) -> None:
        self._log = _SafeLog(structlog.get_logger("worker_client") if log is None else log)
        self._logged: set[object] = set()

    def _is_first(self, *key: object) -> bool:
        if key in self._logged:
            return False
        self._logged.add(key)
        return True

    def log_active(
        self,
        phase: Phase,
        decision: Decision,
        engine: EngineProfile,
        params: EngineParams,
        *,
        plain_ids: bool,
    ) -> None:
        """Logs that affinity is active, once per phase, with the first request of which that is true.

        It is true if the sidecar placed the conversation, or if the id is attached and no rank is forced over
        it, other than the router's with rank source ROUTER, which the engine is to record.
        """
        is_placed = params.applied_directive is RankDirective.PLACE
        is_forced = params.rank is not None and not is_placed
        is_pinned = params.id_attached and (not is_forced or engine.rank_source is RankSource.ROUTER)
        if not (is_placed or is_pinned):
            return
        if not self._is_first("active", phase):
            return
        fields: dict[str, Any] = {
            "phase": phase.name.lower(),
            "dialect": engine.dialect.name.lower(),
            "source": decision.source_detail,
            "origin": decision.origin.value,
            "conversation_id_set": params.id_attached,
            "attention_dp_rank_forced": is_forced,
            "policy_revision": decision.policy_revision,
            "conversation_hash": decision.conversation_hash,
        }
        if is_placed:
            fields["rank_placed"] = True
        if plain_ids and params.id_attached:
            fields["conversation_id"] = decision.conversation_id
        self._log.info("conversation_affinity_active", **fields)

    def log_inactive(self, phase: Phase, decision: Decision, reason: str) -> None:
        """Warns once per phase and reason that an id was resolved and is wanted, but was not attached."""
        if self._is_first("inactive", phase, reason):
            self._log.warning(
                "conversation_affinity_inactive",
                phase=phase.name.lower(),
                reason=reason,
                source=decision.source_detail,
                hint=tokens.advise(reason),
                conversation_hash=decision.conversation_hash,
            )

    def log_confirmed(self, phase: Phase, decision: Decision, rank: int) -> None:
        """Logs once that a second turn was observed on the rank of the first."""
        if self._is_first("confirmed"):
            self._log.info(
                "conversation_affinity_confirmed",
                phase=phase.name.lower(),
                observed_dp_rank=rank,
                conversation_hash=decision.conversation_hash,
            )

    def log_not_honored(self, phase: Phase) -> None:
        """Warns once per phase that conversations keep moving although the engine gets their id or rank."""
        if self._is_first("not-honored", phase):
            self._log.warning(
                "conversation_affinity_not_honored",
                phase=phase.name.lower(),
                hint="the engine gets the conversation's id or rank and moves it nevertheless: check that it "
                "runs its conversation router or follows explicit ranks",
            )

    def log_bad_rank(self, reason: str) -> None:
        """Warns once that a rank was dropped because the engine does not have it."""
        if self._is_first("bad-rank", reason):
            self._log.warning("attention_dp_rank_dropped", reason=reason)

    def log_configuration_problem(self, problem: str, *, is_fatal: bool) -> None:
        """Logs once what is wrong with the settings on this engine."""
        if self._is_first("problem", problem):
            log = self._log.error if is_fatal else self._log.warning
            log("routing_hints_setting_ignored", problem=problem)

    def log_many_engines(self, count: int) -> None:
        """Warns once that each request seems to have its own engine profile, so nothing is remembered."""
        if self._is_first("engines"):
            self._log.warning(
                "too_many_engine_profiles",
                engines=count,
                impact="nothing is remembered or placed across engine profiles",
                hint="detect the engine once and pass the same profile, or use EngineProfile.lazy",
            )

    def log_internal_error(self, error: BaseException) -> None:
        """Logs an exception as an internal error of this library, once per source line.

        Only its type and source line: its text may hold values of the request.
        """
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        if self._is_first("internal_error", place):
            self._log.error(
                "routing_hints_internal_error",
                error=type(error).__name__,
                place=place,
                impact="the request continues without the client",
            )

    def log_unavailable(self, reason: str) -> None:
        """Warns that the sidecar is unavailable; the caller must call it once per outage."""
        self._log.warning(
            "sidecar_unavailable",
            reason=reason,
            impact="known conversations keep their id; the local rule decides for others",
        )

    def log_recovery(self) -> None:
        """Logs that the sidecar is available again."""
        self._log.info("sidecar_recovered")
