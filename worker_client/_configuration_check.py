"""Finds contradictions in a worker's environment and its engine's arguments, and advises what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from routing_hints.vocabulary import AdpRouter
from worker_client._engine import EngineProfile
from worker_client._engine_types import AFFINITY_FIELD, KV_AWARE_FIELD, list_field_names, read_field


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction, or something that keeps affinity from acting, and what to change."""

    problem: str
    change: str


def compare_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the variables of this project whose values differ from those of Dynamo."""
    for ours, theirs, meanings in (
        ("ROUTING_HINTS_AFFINITY", "DYN_ENGINE_CONV_AFFINITY", {"true": "on", "1": "on", "yes": "on"}),
        ("ROUTING_HINTS_RANK_SOURCE", "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE", {"dynamo": "router"}),
    ):
        our_value, their_value = (environ.get(name, "").strip().lower() for name in (ours, theirs))
        if our_value and their_value and our_value != meanings.get(their_value, their_value):
            yield Finding(
                f"{ours}={our_value} and {theirs}={their_value} differ; this client uses the former, "
                "Dynamo's own handlers the latter",
                "unset one of them",
            )


def compare_engine_args(args: Mapping[str, Any] | None, profile: EngineProfile) -> Iterator[Finding]:
    """Yields what in the engine's arguments keeps the configured attention-DP router from acting.

    Args:
        args: the arguments of the engine's `LLM`; None if they are unknown.
        profile: the profile detected from them.
    """
    if args is None:
        yield Finding("the engine's arguments are unknown", "pass --engine-args")
        return
    adp_config = read_field(args, "attention_dp_config")
    pins, probes = (read_field(adp_config, name) is True for name in (AFFINITY_FIELD, KV_AWARE_FIELD))
    known = list_field_names(profile.types.attention_dp_config)
    for name in sorted(list_field_names(adp_config) - known) if known else ():
        yield Finding(
            f"the installed TensorRT-LLM has no attention_dp_config.{name} and rejects it", "remove it"
        )
    if (pins or probes) and profile.adp_router is AdpRouter.DEFAULT:
        if read_field(args, "enable_attention_dp") is not True:
            yield Finding(
                "attention_dp_config chooses a router, but attention DP is off", "set enable_attention_dp"
            )
        elif probes and read_field(read_field(args, "kv_cache_config"), "enable_block_reuse") is False:
            yield Finding(
                "the KV-cache-aware router needs block reuse, which is off", "set enable_block_reuse"
            )
        else:
            yield Finding("attention DP has routers only on the pytorch backend", "set backend to pytorch")
    if pins and probes:
        yield Finding(
            f"{AFFINITY_FIELD} and {KV_AWARE_FIELD} are both set; the former wins", "unset one of them"
        )
    if pins and profile.dp_size == 1:
        yield Finding(
            "the config asks to pin conversations, but there is one rank", "raise tensor_parallel_size"
        )
    if pins and not profile.dialect.carries_conversation_id and profile.version:
        yield Finding(
            "the config asks to pin conversations, but no id can be sent", "use a newer TensorRT-LLM"
        )
