"""Binds addresses, and explains in words why one can't be bound."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

import grpc.aio

from routing_hints.address import Address, TcpAddress, UnixAddress
from routing_hints.errors import ConfigurationError, ConfigurationProblem
from sidecar.settings import SocketAccess

_FULL_MODE = 0o777
_PROBE_TIMEOUT_S = 1.0


def bind_all(
    server: grpc.aio.Server,
    addresses: Iterable[Address],
    access: SocketAccess,
    credentials: grpc.ServerCredentials | None,
) -> list[Address]:
    """Adds the addresses to a server that has not started, and returns them as bound.

    A socket file that no process serves any more is replaced.

    Args:
        server: the server.
        addresses: the addresses to listen on.
        access: mode and group of socket files.
        credentials: TLS credentials for TCP; None for plaintext.

    Raises:
        ConfigurationError: has a problem for each address that can't be bound.
    """
    bound: list[Address] = []
    problems = []
    for address in addresses:
        obstacle = find_obstacle(address)
        if obstacle is None:
            try:
                bound.append(_bind(server, address, access, credentials))
            except PermissionError:
                obstacle = ConfigurationProblem(
                    "socket-group", f"{address}: no permission to change its group"
                )
            except (RuntimeError, OSError):
                obstacle = ConfigurationProblem("listen", f"{address}: can't be bound")
        if obstacle is not None:
            problems.append(obstacle)
    if problems:
        raise ConfigurationError(problems)
    return bound


def find_obstacle(address: Address) -> ConfigurationProblem | None:
    """Returns why an address can't be bound now, or None."""
    if isinstance(address, UnixAddress):
        reason = _find_path_obstacle(address.path)
    else:
        reason = _find_port_obstacle(address)
    return ConfigurationProblem("listen", f"{address}: {reason}") if reason else None


def _bind(
    server: grpc.aio.Server,
    address: Address,
    access: SocketAccess,
    credentials: grpc.ServerCredentials | None,
) -> Address:
    if isinstance(address, TcpAddress):
        if credentials is None:
            return TcpAddress(address.host, server.add_insecure_port(address.netloc))
        return TcpAddress(address.host, server.add_secure_port(address.netloc, credentials))
    # With this umask the socket has its final mode from the start; it is never wider.
    previous = os.umask(_FULL_MODE & ~access.mode)
    try:
        server.add_insecure_port(f"unix:{address.path}")
    finally:
        os.umask(previous)
    if access.group_id is not None:
        os.chown(address.path, -1, access.group_id)
    return address


def _find_path_obstacle(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"no permission to create files in {path.parent}"
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return ""
    if not stat.S_ISSOCK(mode):
        return "another file, not a socket, has that name"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            return f"the socket there can't be probed: {error.strerror or error}"
    return "another process serves this socket"


def _find_port_obstacle(address: TcpAddress) -> str:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the host is unknown: {error.strerror}"
    reasons = []
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(target)
                probe.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "the port is taken"
                reasons.append(error.strerror or str(error))
    # A name such as localhost may have an address of a family that this machine lacks.
    return reasons[0] if len(reasons) == len(found) else ""
