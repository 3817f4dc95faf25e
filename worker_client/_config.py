"""The client's settings, read once at start."""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from routing_hints.address import DEFAULT_TARGET, parse_address
from routing_hints.errors import ConfigurationError, ConfigurationProblem
from routing_hints.limits import MAX_ID_BYTES
from routing_hints.vocabulary import RankSource

T = TypeVar("T")


class Affinity(enum.Enum):
    """Whether affinity is used: by the engine's config (AUTO), also if it is unknown (ON), or never (OFF)."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _default_worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a client.

    Attributes:
        target: the sidecar's address, `unix:///path` or `tcp://host:port`.
        affinity: whether affinity is used.
        rank_source: who chooses the rank; UNSPECIFIED leaves it to the engine profile.
        known_timeout_s: seconds to wait for the sidecar if a decision for the conversation is remembered.
        unknown_timeout_s: seconds to wait if none is.
        memory_entries: conversations remembered per process, 0 for none; about 0.5 kB each.
        local_rule: whether the worker resolves structured carriers itself while the sidecar is unavailable.
        worker_id: this worker's name at the sidecar, at most 256 bytes.

    Raises:
        ConfigurationError: values are out of range; has a problem for each.
    """

    target: str = DEFAULT_TARGET
    affinity: Affinity = Affinity.AUTO
    rank_source: RankSource = RankSource.UNSPECIFIED
    known_timeout_s: float = 0.025
    unknown_timeout_s: float = 0.2
    memory_entries: int = 65_536
    local_rule: bool = True
    worker_id: str = field(default_factory=_default_worker_id)

    def __post_init__(self) -> None:
        problems = [
            ConfigurationProblem(name, expected)
            for name, parse, expected in (
                ("target", parse_address, "must be unix:///path or tcp://host:port"),
                ("known_timeout_s", _positive_float, "must be a positive number"),
                ("unknown_timeout_s", _positive_float, "must be a positive number"),
                ("memory_entries", _count, "must be a whole number, at least 0"),
                ("worker_id", _check_worker_id, "must be text of at most 256 bytes"),
            )
            if not _accepts(parse, getattr(self, name))
        ]
        if problems:
            raise ConfigurationError(problems)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ClientConfig:
        """Returns the settings of `environ`, by default the environment of the process.

        If ours are unset, Dynamo's `DYN_ENGINE_CONV_AFFINITY` (true, 1, yes, on) and
        `DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE` (engine, dynamo) are honored, with the meaning they
        have in Dynamo's own worker. Source: dynamo.trtllm of Dynamo 1.6.1.

        Raises:
            ConfigurationError: values are malformed; has a problem for each.
        """
        environ = os.environ if environ is None else environ
        problems: list[ConfigurationProblem] = []

        def read(name: str, parse: Callable[[str], T], expected: str) -> T | None:
            text = environ.get(name, "").strip()
            if not text:
                return None
            try:
                return parse(text)
            except (ValueError, KeyError):
                problems.append(ConfigurationProblem(name, f"must be {expected}"))
                return None

        affinity = read("ROUTING_HINTS_AFFINITY", lambda t: Affinity(t.lower()), "auto, on or off")
        if affinity is None:
            dynamo = environ.get("DYN_ENGINE_CONV_AFFINITY", "").strip().lower()
            affinity = Affinity.ON if dynamo in {"true", "1", "yes", "on"} else Affinity.AUTO
        sources = {"engine": RankSource.ENGINE, "router": RankSource.ROUTER, "sidecar": RankSource.SIDECAR}
        source = read("ROUTING_HINTS_RANK_SOURCE", lambda t: sources[t.lower()], "engine, router or sidecar")
        if source is None:
            dynamo_sources = {"engine": RankSource.ENGINE, "dynamo": RankSource.ROUTER}
            source = read(
                "DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE",
                lambda t: dynamo_sources[t.lower()],
                "engine or dynamo",
            )
        known_ms = read("ROUTING_HINTS_KNOWN_TIMEOUT_MS", _positive_float, "a positive number")
        unknown_ms = read("ROUTING_HINTS_UNKNOWN_TIMEOUT_MS", _positive_float, "a positive number")
        target = read("ROUTING_HINTS_TARGET", _check_target, "unix:///path or tcp://host:port")
        worker_id = read("ROUTING_HINTS_WORKER_ID", _check_worker_id, "text of at most 256 bytes")
        if problems:
            raise ConfigurationError(problems)
        settings: dict[str, Any] = {
            "target": target,
            "known_timeout_s": known_ms and known_ms / 1000,
            "unknown_timeout_s": unknown_ms and unknown_ms / 1000,
            "worker_id": worker_id,
        }
        return replace(
            cls(affinity=affinity, rank_source=source or RankSource.UNSPECIFIED),
            **{name: value for name, value in settings.items() if value is not None},
        )


def _accepts(parse: Callable[[Any], object], value: object) -> bool:
    try:
        parse(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _positive_float(text: str | float) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _count(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _check_worker_id(text: str) -> str:
    if len(text.encode()) > MAX_ID_BYTES:
        raise ValueError(text)
    return text


def _check_target(text: str) -> str:
    parse_address(text)
    return text
