"""What stands in the way of an address."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sidecar.server.listener import find_obstacle
from sidecar.settings import TcpAddress, UnixAddress


def _reason(address: UnixAddress | TcpAddress) -> str:
    fault = find_obstacle(address)
    return "" if fault is None else fault.reason.removeprefix(f"{address}: ")


def test_a_free_path_is_free(socket_folder: Path) -> None:
    """A path in an existing folder can be bound."""
    assert _reason(UnixAddress(socket_folder / "s")) == ""


def test_a_missing_folder_is_named(socket_folder: Path) -> None:
    """The operator reads which folder to make."""
    folder = socket_folder / "absent"
    assert _reason(UnixAddress(folder / "s")) == f"the folder {folder} does not exist"


def test_a_stale_socket_is_no_obstacle(socket_folder: Path) -> None:
    """A socket file that nobody listens on can be replaced."""
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert _reason(UnixAddress(path)) == ""


def test_a_live_socket_is_refused(socket_folder: Path) -> None:
    """A socket that somebody listens on is left alone."""
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        assert _reason(UnixAddress(path)) == "another process serves this socket"


def test_a_file_is_never_replaced(socket_folder: Path) -> None:
    """Only sockets are removed, not what an operator named by mistake."""
    path = socket_folder / "s"
    path.write_text("data")
    assert _reason(UnixAddress(path)) == "a file that is no socket is in the way"
    assert path.read_text() == "data"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(socket_folder: Path) -> None:
    """The reason is the folder's permission."""
    socket_folder.chmod(0o500)
    reason = _reason(UnixAddress(socket_folder / "s"))
    socket_folder.chmod(0o700)
    assert reason == f"no permission to create files in {socket_folder}"


def test_a_taken_port_is_refused() -> None:
    """A port that somebody listens on is said to be taken."""
    with socket.create_server(("127.0.0.1", 0)) as live:
        assert _reason(TcpAddress("127.0.0.1", live.getsockname()[1])) == "the port is taken"


def test_a_free_port_is_free() -> None:
    """The probe leaves a port as it found it."""
    assert _reason(TcpAddress("127.0.0.1", 0)) == ""


def test_an_unknown_host_is_named() -> None:
    """A host without an address can't be bound."""
    assert _reason(TcpAddress("host.invalid", 1)).startswith("the host is unknown")
