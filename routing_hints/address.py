"""Addresses of the sidecar, in the one spelling that both processes read."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

DEFAULT_TARGET = "unix:///run/routing-hints/sidecar.sock"
"""Where the sidecar listens and the client connects, where neither is configured."""

# Length of sockaddr_un.sun_path on Linux, without the closing zero.
_MAX_SOCKET_PATH_BYTES = 107
# gRPC reads a Unix target as a URI: it decodes `%` and cuts the path at the two others.
_RESERVED_IN_PATHS = "%?#"
_INVALID = "not a valid address: expected unix:///path or tcp://host:port"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"

    @property
    def grpc_target(self) -> str:
        """The address as gRPC spells it."""
        return f"unix:{self.path}"


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
    def grpc_target(self) -> str:
        """The address as gRPC spells it."""
        return self.netloc

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine or pod can reach it; a name other than localhost may."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


Address: TypeAlias = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Returns the address of `unix:///path`, `unix:/path` or `tcp://host:port`.

    Raises:
        ValueError: the text is not an address; the message says why.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return _parse_path(rest.removeprefix("//"))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(_INVALID) from None
    # IPv6 needs its brackets, without which the last group reads as a port.
    is_plain = text == f"tcp://{parts.netloc}" and "@" not in parts.netloc
    if (
        is_plain
        and parts.hostname
        and port is not None
        and (parts.netloc.count(":") == 1 or "]" in parts.netloc)
    ):
        return TcpAddress(parts.hostname, port)
    raise ValueError(_INVALID)


def _parse_path(path: str) -> UnixAddress:
    if not path.startswith("/"):
        raise ValueError(_INVALID)
    if any(character in _RESERVED_IN_PATHS or not character.isprintable() for character in path):
        raise ValueError(
            "the socket's path has a character that gRPC can't take: one of % ? # or unprintable"
        )
    if len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"the socket's path is longer than {_MAX_SOCKET_PATH_BYTES} bytes")
    return UnixAddress(Path(path))


def parse_netloc(text: str) -> TcpAddress:
    """Returns the address of `host:port`.

    Raises:
        ValueError: the text is not an address; the message says why.
    """
    try:
        address = parse_address(f"tcp://{text}")
    except ValueError:
        address = None
    if not isinstance(address, TcpAddress):
        raise ValueError("not a valid address: expected host:port")
    return address
