"""What the client says in the worker's log: each thing once, or once per episode, never once per request."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import structlog

from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams
from worker_client._model import Answer, Phase, RankDirective, RankSource

_ADVICE = {
    "adp-router-unknown": "pass an EngineProfile that was detected from the engine, or set affinity to on",
    "connection-refused": "start the sidecar, or correct ROUTING_HINTS_TARGET",
    "dialect-cannot-carry-id": "use a TensorRT-LLM that can be told a conversation, or rank source sidecar",
    "engine-refused-id": "the engine's own validation refused the id; see the request's conversation_hash",
    "mode-off": "set mode: on in the sidecar's policy",
    "mode-shadow": "set mode: on in the sidecar's policy",
    "no-disaggregated-params": "pass the request's DisaggregatedParams to plan.engine_kwargs",
    "outside-rollout": "raise rollout_percent in the sidecar's policy",
    "permission-denied": "run the worker in the group of the sidecar's socket",
    "router-pins-nothing": "set attention_dp_config.kv_cache_routing_conversation_affinity",
    "socket-missing": "start the sidecar, or mount the folder of its socket into the worker's container",
    "tensorrt-llm-not-importable": "run the client where the engine is installed",
}
_DEFAULT_ADVICE = "see the token in docs/reference.md"


def advise(reason: str) -> str:
    """Returns what to change where `reason`, a token, keeps affinity from acting."""
    return _ADVICE.get(reason, _DEFAULT_ADVICE)


class _SafeLog:
    """The worker's own log, which may fail, as on a closed stdout; a request must not feel it."""

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


class Announcer:
    """Writes to structlog, configured by the worker; this library configures nothing."""

    def __init__(self, log: Any = None) -> None:
        self._log = _SafeLog(structlog.get_logger("worker_client") if log is None else log)
        self._said: set[object] = set()

    def _is_first(self, *key: object) -> bool:
        if key in self._said:
            return False
        self._said.add(key)
        return True

    def announce_active(
        self, phase: Phase, answer: Answer, engine: EngineProfile, params: EngineParams, *, plain_ids: bool
    ) -> None:
        """States the invariants, the first time per leg that a request goes out with them holding.

        They hold where the sidecar placed the conversation, or where the id is attached and no rank is forced
        over it, unless the operator says that the router's rank is the one to record.
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
            "source": answer.source_detail,
            "conversation_id_set": params.id_attached,
            "attention_dp_rank_forced": is_forced,
            "policy_revision": answer.policy_revision,
            "conversation_hash": answer.conversation_hash,
        }
        if is_placed:
            fields["rank_placed"] = True
        if plain_ids and params.id_attached:
            fields["conversation_id"] = answer.conversation_id
        self._log.info("conversation_affinity_active", **fields)

    def announce_inactive(self, phase: Phase, answer: Answer, reason: str) -> None:
        """Warns once per leg and reason that an id was resolved, is wanted and was not attached."""
        if self._is_first("inactive", phase, reason):
            self._log.warning(
                "conversation_affinity_inactive",
                phase=phase.name.lower(),
                reason=reason,
                source=answer.source_detail,
                change=advise(reason),
                conversation_hash=answer.conversation_hash,
            )

    def announce_confirmed(self, phase: Phase, answer: Answer, rank: int) -> None:
        """Says once that a second turn was observed on the rank of the first."""
        if self._is_first("confirmed"):
            self._log.info(
                "conversation_affinity_confirmed",
                phase=phase.name.lower(),
                observed_dp_rank=rank,
                conversation_hash=answer.conversation_hash,
            )

    def announce_not_honoured(self, phase: Phase) -> None:
        """Warns once per leg that conversations keep moving although the engine is told of them."""
        if self._is_first("not-honoured", phase):
            self._log.warning(
                "conversation_affinity_not_honoured",
                phase=phase.name.lower(),
                change="the engine is told the conversation or its rank and moves it all the same: check "
                "that it runs its conversation router or takes the ranks that it is sent",
            )

    def announce_bad_rank(self, reason: str) -> None:
        """Warns once that a rank was dropped because the engine has no such rank."""
        if self._is_first("bad-rank", reason):
            self._log.warning("attention_dp_rank_dropped", reason=reason)

    def announce_fault(self, fault: str, *, is_fatal: bool) -> None:
        """Says once what is wrong with the settings on this engine."""
        if self._is_first("fault", fault):
            say = self._log.error if is_fatal else self._log.warning
            say("routing_hints_setting_ignored", fault=fault)

    def announce_many_engines(self, count: int) -> None:
        """Warns once that each request seems to have an engine of its own, so that nothing is known again."""
        if self._is_first("engines"):
            self._log.warning(
                "engine_profiles_pile_up",
                engines=count,
                effect="no conversation is known from one engine to another: no memory, no placement",
                change="detect the engine once and pass the same profile, or use EngineProfile.lazy",
            )

    def announce_defect(self, error: BaseException) -> None:
        """Logs an exception as a defect of this library, once per place that it comes from.

        Its type and place only: the text may hold values of the request.
        """
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        if self._is_first("defect", place):
            self._log.error(
                "routing_hints_defect",
                error=type(error).__name__,
                place=place,
                effect="the request goes on without the client",
            )

    def announce_silence(self, reason: str) -> None:
        """Warns that the sidecar does not answer; once per episode is the caller's duty."""
        self._log.warning(
            "sidecar_silent",
            reason=reason,
            effect="known conversations keep their id; the local rule decides others",
        )

    def announce_no_stream(self) -> None:
        """Warns once that the sidecar has no stream RPC."""
        if self._is_first("unary"):
            self._log.warning(
                "sidecar_without_stream",
                effect="one call per question; nothing is remembered, and ends of requests are not reported",
            )

    def announce_recovery(self) -> None:
        """Says that the sidecar answers again."""
        self._log.info("sidecar_recovered")
