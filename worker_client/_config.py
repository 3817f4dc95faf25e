"""The client's settings, read once at start."""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from worker_client._errors import ConfigurationError
from worker_client._model import RankSource

T = TypeVar("T")

MAX_WORKER_ID_BYTES = 256


class Affinity(enum.Enum):
    """Whether conversation affinity is used: as the engine's own config says, or as told."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _default_worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Everything that can be set about a client.

    Attributes:
        target: the sidecar, `unix:///path` or `tcp://host:port`.
        affinity: the gate.
        rank_source: who chooses the rank; unspecified leaves it to the engine profile.
        known_timeout_s: seconds to wait for the sidecar where memory holds an answer.
        unknown_timeout_s: seconds to wait where it does not.
        memory_entries: conversations remembered per process, 0 for none; about 0.5 kB each.
        local_rule: whether structured carriers are resolved in the worker while the sidecar is silent.
        worker_id: names this worker at the sidecar, at most 256 bytes.

    Raises:
        ConfigurationError: a value is out of its range; names all that are.
    """

    target: str = "unix:///run/routing-hints/sidecar.sock"
    affinity: Affinity = Affinity.AUTO
    rank_source: RankSource = RankSource.UNSPECIFIED
    known_timeout_s: float = 0.025
    unknown_timeout_s: float = 0.2
    memory_entries: int = 65_536
    local_rule: bool = True
    worker_id: str = field(default_factory=_default_worker_id)

    def __post_init__(self) -> None:
        faults = [
            f"{name} {expected}"
            for name, parse, expected in (
                ("target", _checked_target, "must be unix:///path or tcp://host:port"),
                ("known_timeout_s", _positive_float, "must be a positive number"),
                ("unknown_timeout_s", _positive_float, "must be a positive number"),
                ("memory_entries", _count, "must be a whole number from 0"),
                ("worker_id", _checked_worker_id, "must be text of at most 256 bytes"),
            )
            if not _accepts(parse, getattr(self, name))
        ]
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ClientConfig:
        """Returns the settings of `environ`, by default of the process.

        Where ours are unset, Dynamo's `DYN_ENGINE_CONV_AFFINITY` (true, 1, yes, on) and
        `DYN_ENGINE_CONV_AFFINITY_DP_RANK_SOURCE` (engine, dynamo) are honoured, with the meaning they
        have in Dynamo's own worker. Source: dynamo.trtllm of Dynamo 1.6.1.

        Raises:
            ConfigurationError: a value is malformed; names all that are.
        """
        environ = os.environ if environ is None else environ
        faults: list[str] = []

        def read(name: str, parse: Callable[[str], T], expected: str) -> T | None:
            text = environ.get(name, "").strip()
            if not text:
                return None
            try:
                return parse(text)
            except (ValueError, KeyError):
                faults.append(f"{name} must be {expected}")
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
        target = read("ROUTING_HINTS_TARGET", _checked_target, "unix:///path or tcp://host:port")
        worker_id = read("ROUTING_HINTS_WORKER_ID", _checked_worker_id, "text of at most 256 bytes")
        if faults:
            raise ConfigurationError(faults)
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


def _checked_worker_id(text: str) -> str:
    if len(text.encode()) > MAX_WORKER_ID_BYTES:
        raise ValueError(text)
    return text


def _checked_target(text: str) -> str:
    grpc_target(text)
    return text


def grpc_target(target: str) -> str:
    """Returns `target` as gRPC spells it.

    Raises:
        ValueError: it is neither `unix:///path` nor `tcp://host:port`.
    """
    scheme, separator, rest = target.partition("://")
    if separator and scheme == "unix" and rest.startswith("/"):
        return f"unix:{rest}"
    if separator and scheme == "tcp" and rest.rpartition(":")[0] and rest.rpartition(":")[2].isdigit():
        return rest
    raise ValueError(target)
