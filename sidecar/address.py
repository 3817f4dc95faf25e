"""Addresses to listen on or to ask at, as they are written on the command line."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

# Length of sockaddr_un.sun_path on Linux, without the closing zero.
_MAX_SOCKET_PATH_BYTES = 107
_NO_ADDRESS = "is no address: expected unix:///path or tcp://host:port"


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


def parse_address(text: str) -> Address:
    """Returns the address of `unix:///path` or `tcp://host:port`.

    Raises:
        ValueError: it is none; the text says why.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(_NO_ADDRESS) from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        if len(parts.path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"path is longer than {_MAX_SOCKET_PATH_BYTES} bytes")
        return UnixAddress(Path(parts.path))
    if parts.scheme == "tcp" and parts.hostname and port is not None and not parts.path:
        return TcpAddress(parts.hostname, port)
    raise ValueError(_NO_ADDRESS)


def parse_netloc(text: str) -> TcpAddress:
    """Returns the address of `host:port`.

    Raises:
        ValueError: it is none; the text says why.
    """
    try:
        address = parse_address(f"tcp://{text}")
    except ValueError:
        address = None
    if not isinstance(address, TcpAddress):
        raise ValueError("is no address: expected host:port")
    return address
