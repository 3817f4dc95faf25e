"""Decides whether affinity is used on an engine, by the operator's settings and the engine's own config."""

from __future__ import annotations

from dataclasses import dataclass, replace

from routing_hints import tokens
from routing_hints.vocabulary import AdpRouter, RankSource
from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile


@dataclass(frozen=True, slots=True)
class GatedEngine:
    """An engine's profile after the operator's settings were applied.

    Attributes:
        profile: the profile with the operator's settings filled in.
        closed: why the sidecar is not called for this engine, as a reason token; empty if it is.
        problem: what is wrong with the settings on this engine, as text; empty if nothing is.
        is_problem_fatal: whether `problem` means that a setting can never act.
        is_affinity_wanted: whether the operator or the engine's config enables affinity, so that an id that
            is not attached is worth a warning.
    """

    profile: EngineProfile
    closed: str = ""
    problem: str = ""
    is_problem_fatal: bool = False
    is_affinity_wanted: bool = False


def apply_gate(config: ClientConfig, profile: EngineProfile) -> GatedEngine:
    """Returns `profile` under the settings of `config`. Pure.

    `on` fills in a config that could not be read. A config without affinity overrides it, so that a shared
    environment can't enable affinity for an engine that has it off. Placement by the sidecar needs neither
    the engine's router nor its dialect, so `on` has no effect there.
    """
    if config.affinity is Affinity.OFF:
        return GatedEngine(profile, closed=tokens.GATE_OFF)
    rank_source = config.rank_source or profile.rank_source
    router = profile.adp_router
    problem = ""
    if config.affinity is Affinity.ON and rank_source is not RankSource.SIDECAR:
        if not profile.dialect.carries_conversation_id:
            problem = "affinity is on, but the installed TensorRT-LLM takes no conversation id"
        elif not router.is_known:
            router = AdpRouter.CONVERSATION
        elif router is not AdpRouter.CONVERSATION:
            problem = (
                "affinity is on, but the engine's attention_dp_config does not set "
                "kv_cache_routing_conversation_affinity; its config wins"
            )
    gated = replace(profile, adp_router=router, rank_source=rank_source)
    fatal = _find_dead_setting(gated)
    return GatedEngine(
        gated,
        closed=tokens.SETTING_CANNOT_ACT if fatal else "",
        problem=fatal or problem,
        is_problem_fatal=bool(fatal),
        is_affinity_wanted=config.affinity is Affinity.ON
        or router is AdpRouter.CONVERSATION
        or rank_source is RankSource.SIDECAR
        or profile.wants_conversation_id,
    )


def _find_dead_setting(profile: EngineProfile) -> str:
    if profile.rank_source is not RankSource.SIDECAR:
        return ""
    if profile.dp_size == 0:
        return "rank source is sidecar, but the engine's number of attention-DP ranks is unknown"
    if profile.dp_size == 1:
        return "rank source is sidecar, but the engine has a single attention-DP rank"
    if profile.adp_router is AdpRouter.CONVERSATION and not profile.records_first_rank:
        return (
            "rank source is sidecar, but the engine's conversation router does not record an explicit first "
            "rank; use rank source engine, or set records_first_rank if it does"
        )
    return ""
