"""Why an address can't be bound."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from routing_hints.address import TcpAddress, UnixAddress
from sidecar.server.listener import find_obstacle


def _reason(address: UnixAddress | TcpAddress) -> str:
    problem = find_obstacle(address)
    return "" if problem is None else problem.reason.removeprefix(f"{address}: ")


def test_path_in_an_existing_folder_can_be_bound(socket_folder: Path) -> None:
    assert _reason(UnixAddress(socket_folder / "s")) == ""


def test_missing_folder_is_named(socket_folder: Path) -> None:
    folder = socket_folder / "absent"
    assert _reason(UnixAddress(folder / "s")) == f"the folder {folder} does not exist"


def test_socket_file_that_nobody_listens_on_can_be_replaced(socket_folder: Path) -> None:
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert _reason(UnixAddress(path)) == ""


def test_socket_of_another_process_is_refused(socket_folder: Path) -> None:
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        assert _reason(UnixAddress(path)) == "another process serves this socket"


def test_file_that_is_not_a_socket_is_never_replaced(socket_folder: Path) -> None:
    """The operator named it by mistake."""
    path = socket_folder / "s"
    path.write_text("data")
    assert _reason(UnixAddress(path)) == "another file, not a socket, has that name"
    assert path.read_text() == "data"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_named(socket_folder: Path) -> None:
    socket_folder.chmod(0o500)
    reason = _reason(UnixAddress(socket_folder / "s"))
    socket_folder.chmod(0o700)
    assert reason == f"no permission to create files in {socket_folder}"


def test_port_of_another_process_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as live:
        assert _reason(TcpAddress("127.0.0.1", live.getsockname()[1])) == "the port is taken"


def test_free_port_can_be_bound() -> None:
    assert _reason(TcpAddress("127.0.0.1", 0)) == ""


def test_host_without_an_address_is_unknown() -> None:
    assert _reason(TcpAddress("host.invalid", 1)).startswith("the host is unknown")
