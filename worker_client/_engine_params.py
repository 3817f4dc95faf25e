"""Turns a decision into keyword arguments of `LLM.generate_async`, in the dialect of the installed release.

Objects that the caller gives are copied, never built anew: `dataclasses.replace` would run their validation
again on values that only the engine may set. Whatever goes wrong here ends in parameters that forward what
can be forwarded.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from routing_hints import tokens
from routing_hints.vocabulary import AdpRouter, RankDirective
from worker_client._dialect import Attachment, find_adapter
from worker_client._engine import EngineProfile
from worker_client._model import Decision


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Engine parameters, and what they really do.

    Attributes:
        kwargs: `disaggregated_params` and `scheduling_params`, and `conversation_params` where the dialect
            has it and an id is attached.
        applied_directive: what was done with the rank.
        id_attached: whether the conversation id is in `kwargs`.
        rank: the attention-DP rank that `kwargs` force, None if they force none.
        reason: why this differs from the decision, a reason token; empty if it does not.
    """

    kwargs: dict[str, Any]
    applied_directive: RankDirective
    id_attached: bool
    rank: int | None
    reason: str = ""


def assemble_params(
    decision: Decision,
    engine: EngineProfile,
    *,
    router_rank: int | None,
    keeps_given_id: bool = False,
    disaggregated_params: Any = None,
    scheduling_params: Any = None,
) -> EngineParams:
    """Returns the engine parameters for one request. Never raises.

    Args:
        decision: what is to be done.
        engine: the engine that will run the request.
        router_rank: the rank that the router chose, within the engine's range; None if it chose none.
        keeps_given_id: whether an id in the caller's object stays, as without this library; by default it
            is overwritten or cleared.
        disaggregated_params: the caller's object, which it keeps unchanged; None if it has none.
        scheduling_params: likewise.
    """
    attachment = (
        Attachment(disaggregated_params)
        if keeps_given_id
        else find_adapter(engine.dialect).attach(decision.conversation_id, engine.types, disaggregated_params)
    )
    directive, reason = _limit_directive(decision, engine, attachment)
    schedule = _Schedule(engine, scheduling_params)
    if directive is RankDirective.PLACE:
        schedule.set_rank(decision.dp_rank, relax=True)
    elif directive is RankDirective.WITHHOLD:
        schedule.set_rank(None, relax=True)
    elif schedule.rank is not None and not is_rank_valid(schedule.rank, engine):
        schedule.set_rank(None, relax=True)
        reason = reason or tokens.GIVEN_RANK_OUT_OF_RANGE
    elif schedule.rank is None and router_rank is not None:
        schedule.set_rank(router_rank, relax=False)
    is_subagent = decision.affinity_key is not None and decision.affinity_key != decision.conversation_id
    if attachment.id_attached and engine.subagent_affinity and is_subagent:
        schedule.set_subagent_key(decision.affinity_key)
    built, schedule_reason = schedule.build()
    rank = getattr(built, "attention_dp_rank", None)
    if schedule_reason and (directive is RankDirective.PLACE or rank is not None):
        directive = RankDirective.FORWARD  # the rank could not be changed
    kwargs = {"disaggregated_params": attachment.disaggregated_params, "scheduling_params": built}
    if attachment.conversation_params is not None:
        kwargs["conversation_params"] = attachment.conversation_params
    return EngineParams(
        kwargs,
        applied_directive=directive,
        id_attached=attachment.id_attached,
        rank=rank,
        reason=reason or schedule_reason,
    )


def _limit_directive(
    decision: Decision, engine: EngineProfile, attachment: Attachment
) -> tuple[RankDirective, str]:
    """Returns what is done with the rank, and why that differs from the decision."""
    directive, reason = decision.directive, attachment.reason
    needs_id = engine.adp_router is not AdpRouter.KV_CACHE_AWARE
    if directive is RankDirective.WITHHOLD and needs_id and not attachment.id_attached:
        return RankDirective.FORWARD, reason  # without the id the engine would pin nothing
    if directive is RankDirective.PLACE and not is_rank_valid(decision.dp_rank, engine):
        return RankDirective.FORWARD, tokens.PLACED_RANK_OUT_OF_RANGE
    return directive, reason


def is_rank_valid(rank: object, engine: EngineProfile) -> bool:
    """Returns whether the engine has an attention-DP rank `rank`.

    The engine's default router indexes by the rank without a check, in the executor loop of every rank, so a
    bad one would end the engine. Source: `DefaultADPRouter.route_requests` of NVIDIA/TensorRT-LLM.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        return False
    return engine.dp_size == 0 or rank < engine.dp_size


class _Schedule:
    """The caller's scheduling parameters and the changes to them, built once at the end."""

    def __init__(self, engine: EngineProfile, given: Any) -> None:
        self._type = engine.types.scheduling_params
        self._given = given
        self._changes: dict[str, Any] = {}
        self.rank: Any = getattr(given, "attention_dp_rank", None)

    def set_rank(self, rank: int | None, *, relax: bool) -> None:
        if self._given is None and rank is None:
            return
        self._changes |= {"attention_dp_rank": rank, "attention_dp_relax": relax}

    def set_subagent_key(self, key: str | None) -> None:
        self._changes["subagent_affinity_id"] = key

    def build(self) -> tuple[Any, str]:
        """Returns the parameters, None if none are needed, and a reason token if they could not be built."""
        given = self._given
        if given is not None and getattr(given, "attention_dp_relax", True) is None:
            # None among booleans breaks the engine's sort of a batch (NVIDIA/TensorRT-LLM#14267).
            self._changes.setdefault("attention_dp_relax", self.rank is None)
        if given is None and not self._changes:
            return None, ""
        changes = {
            name: value for name, value in self._changes.items() if getattr(given, name, _UNSET) != value
        }
        if given is not None and not changes:
            return given, ""
        try:
            if given is not None:
                built = copy.copy(given)
                for name, value in changes.items():
                    setattr(built, name, value)
                return built, ""
            if self._type is None:
                return None, tokens.TENSORRT_LLM_NOT_IMPORTABLE
            return self._type(**{"attention_dp_relax": True, **changes}), ""
        except Exception:  # noqa: BLE001  the engine's own validation may raise anything
            return given, tokens.ENGINE_REFUSED_SCHEDULE


_UNSET = object()
