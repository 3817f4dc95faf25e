"""Binding addresses, with a reason that a person understands where that fails."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

import grpc.aio

from sidecar.address import Address, TcpAddress, UnixAddress
from sidecar.fault import ConfigurationError, Fault
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

    A socket file that nobody serves any more is replaced.

    Args:
        server: what to bind.
        addresses: where.
        access: who may use socket files.
        credentials: for TCP; None serves it in clear.

    Raises:
        ConfigurationError: with a fault for each address that can't be bound.
    """
    bound: list[Address] = []
    faults = []
    for address in addresses:
        obstacle = find_obstacle(address)
        if obstacle is None:
            try:
                bound.append(_bind(server, address, access, credentials))
            except PermissionError:
                obstacle = Fault("socket-group", f"{address}: no permission to give it to that group")
            except (RuntimeError, OSError):
                obstacle = Fault("listen", f"{address}: can't be bound")
        if obstacle is not None:
            faults.append(obstacle)
    if faults:
        raise ConfigurationError(faults)
    return bound


def find_obstacle(address: Address) -> Fault | None:
    """Returns why an address can't be bound now, or None."""
    if isinstance(address, UnixAddress):
        reason = _find_path_obstacle(address.path)
    else:
        reason = _find_port_obstacle(address)
    return Fault("listen", f"{address}: {reason}") if reason else None


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
    # The mask leaves the mode to the socket file from the moment that it exists.
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
        return "a file that is no socket is in the way"
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
