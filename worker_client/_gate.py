"""Whether affinity is used on an engine: the operator's settings held against the engine's own config."""

from __future__ import annotations

from dataclasses import dataclass

from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile, with_gate
from worker_client._model import AdpRouter, EngineDialect, RankSource

OFF = "gate-off"


@dataclass(frozen=True, slots=True)
class GatedEngine:
    """An engine as requests are to see it.

    Attributes:
        profile: the profile with the operator's settings filled in.
        closed: why no request of this engine is asked about, a reason token; empty if they are.
        fault: what is wrong with the settings on this engine, for people; empty if nothing is.
        is_fault_fatal: whether `fault` means that a setting can never act.
        is_affinity_wanted: whether the operator or the engine's config asks for affinity, so that an id that
            is not attached deserves a warning.
    """

    profile: EngineProfile
    closed: str = ""
    fault: str = ""
    is_fault_fatal: bool = False
    is_affinity_wanted: bool = False


def apply_gate(config: ClientConfig, profile: EngineProfile) -> GatedEngine:
    """Returns `profile` under the settings of `config`. Pure.

    `on` fills in a config that could not be read; against a config that says no it loses, so that a shared
    environment can't switch affinity on for an engine that has it off. Placement by the sidecar needs neither
    the engine's router nor its dialect, so `on` asks for nothing more there.
    """
    if config.affinity is Affinity.OFF:
        return GatedEngine(profile, closed=OFF)
    rank_source = config.rank_source or profile.rank_source
    router = profile.adp_router
    fault = ""
    if config.affinity is Affinity.ON and rank_source is not RankSource.SIDECAR:
        if profile.dialect is EngineDialect.RANK_ONLY:
            fault = "affinity is on, but the installed TensorRT-LLM can't be told a conversation id"
        elif router in (AdpRouter.UNKNOWN, AdpRouter.UNSPECIFIED):
            router = AdpRouter.CONVERSATION
        elif router is not AdpRouter.CONVERSATION:
            fault = (
                "affinity is on, but the engine's attention_dp_config does not set "
                "kv_cache_routing_conversation_affinity; its config wins"
            )
    gated = with_gate(profile, router, rank_source)
    fatal = _find_dead_setting(gated)
    return GatedEngine(
        gated,
        closed="setting-cannot-act" if fatal else "",
        fault=fatal or fault,
        is_fault_fatal=bool(fatal),
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
            "rank; use rank source engine, or say records_first_rank if it does"
        )
    return ""
