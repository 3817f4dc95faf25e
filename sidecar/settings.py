"""What the process was told: command line over environment over defaults."""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from sidecar.fault import Fault

DEFAULT_LISTEN = "unix:///run/routing-hints/sidecar.sock"
DEFAULT_DRAIN_TIMEOUT_S = 10.0
LISTEN_VARIABLE = "ROUTING_HINTS_LISTEN"
POLICY_VARIABLE = "ROUTING_HINTS_POLICY"

# Length of sockaddr_un.sun_path on Linux, without the closing zero.
_MAX_SOCKET_PATH_BYTES = 107
_MAX_DRAIN_TIMEOUT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port; port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside of this machine or pod can reach it; a name other than localhost may."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


Address: TypeAlias = UnixAddress | TcpAddress


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run."""

    listen: tuple[Address, ...]
    policy_path: Path | None
    """None takes the embedded policy."""
    drain_timeout_s: float


def read_settings(
    *,
    listen: Sequence[str] = (),
    policy: str | None = None,
    drain_timeout_s: str | None = None,
    insecure_bind: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Settings, list[Fault]]:
    """Returns what is right of the settings, and what is wrong with the rest.

    Args:
        listen: addresses, `unix:///path` or `tcp://host:port`; they replace those of the environment.
        policy: path of the policy file.
        drain_timeout_s: seconds to wait for open streams when stopping, 0 to 3,600.
        insecure_bind: permits TCP addresses that others can reach.
        environment: `ROUTING_HINTS_LISTEN` (comma-separated) and `ROUTING_HINTS_POLICY`; an empty
            variable counts as unset.
    """
    if not listen:
        named = environment.get(LISTEN_VARIABLE, "")
        listen = [part.strip() for part in named.split(",") if part.strip()] or [DEFAULT_LISTEN]
    found = [_read_address(text, insecure_bind=insecure_bind) for text in listen]
    faults = [fault for fault in found if isinstance(fault, Fault)]
    addresses = tuple(address for address in found if not isinstance(address, Fault))
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    faults.extend(Fault("listen", f"{address}: occurs twice") for address in twice)
    try:
        timeout_s = _parse_timeout(drain_timeout_s)
    except ValueError as error:
        timeout_s = DEFAULT_DRAIN_TIMEOUT_S
        faults.append(Fault("drain-timeout-s", str(error)))
    path = policy or environment.get(POLICY_VARIABLE, "")
    return Settings(addresses, Path(path) if path else None, timeout_s), faults


def _read_address(text: str, *, insecure_bind: bool) -> Address | Fault:
    try:
        address = _parse_address(text)
    except ValueError as error:
        return Fault("listen", f"{text}: {error}")
    if isinstance(address, TcpAddress) and not (insecure_bind or address.is_loopback):
        reason = "can be reached from outside without TLS; --insecure-bind permits it"
        return Fault("listen", f"{text}: {reason}")
    return address


def _parse_address(text: str) -> Address:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is no address: expected unix:///path or tcp://host:port") from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        if len(parts.path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"path is longer than {_MAX_SOCKET_PATH_BYTES} bytes")
        return UnixAddress(Path(parts.path))
    if parts.scheme == "tcp" and parts.hostname and port is not None and not parts.path:
        return TcpAddress(parts.hostname, port)
    raise ValueError("is no address: expected unix:///path or tcp://host:port")


def _parse_timeout(text: str | None) -> float:
    if text is None:
        return DEFAULT_DRAIN_TIMEOUT_S
    try:
        timeout_s = float(text)
    except ValueError:
        raise ValueError("is no number") from None
    if not 0 <= timeout_s <= _MAX_DRAIN_TIMEOUT_S:
        raise ValueError(f"is not between 0 and {_MAX_DRAIN_TIMEOUT_S:.0f}")
    return timeout_s
