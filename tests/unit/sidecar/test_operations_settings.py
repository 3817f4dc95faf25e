"""Settings of the HTTP side, of socket files and of TLS."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.settings import Settings, SocketAccess, TcpAddress, TlsFiles, read_settings


def _read(environment: dict[str, str] | None = None, **options: Any) -> Settings:
    settings, faults = read_settings(environment=environment or {}, **options)
    assert faults == []
    return settings


def _faults(**options: Any) -> list[str]:
    return [str(fault) for fault in read_settings(environment={}, **options)[1]]


def test_nothing_of_it_is_on_by_default() -> None:
    """No HTTP side, no TLS, and socket files for owner and group."""
    settings = _read()
    assert (settings.metrics_listen, settings.tls) == (None, None)
    assert settings.socket_access == SocketAccess(0o660, None)


def test_the_environment_sets_all_of_it() -> None:
    """A container is configured without a command line."""
    settings = _read(
        {
            "ROUTING_HINTS_METRICS_LISTEN": "0.0.0.0:9464",
            "ROUTING_HINTS_SOCKET_MODE": "0666",
            "ROUTING_HINTS_SOCKET_GROUP": "4711",
            "ROUTING_HINTS_TLS_CERT": "c",
            "ROUTING_HINTS_TLS_KEY": "k",
            "ROUTING_HINTS_TLS_CLIENT_CA": "a",
        }
    )
    assert settings.metrics_listen == TcpAddress("0.0.0.0", 9464)  # noqa: S104
    assert settings.socket_access == SocketAccess(0o666, 4711)
    assert settings.tls == TlsFiles(Path("c"), Path("k"), Path("a"))


def test_the_command_line_wins() -> None:
    """As with every other setting."""
    assert _read({"ROUTING_HINTS_SOCKET_MODE": "0666"}, socket_mode="0600").socket_access.mode == 0o600


def test_a_group_may_be_named() -> None:
    """Its number is looked up."""
    group = grp.getgrgid(os.getegid())
    assert _read(socket_group=group.gr_name).socket_access.group_id == group.gr_gid


def test_tls_permits_reachable_addresses() -> None:
    """Whoever can reach it can't read along."""
    settings = _read(listen=["tcp://0.0.0.0:1"], tls_cert="c", tls_key="k")
    assert settings.listen == (TcpAddress("0.0.0.0", 1),)  # noqa: S104


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"metrics_listen": "9464"}, "metrics-listen: 9464: is no address: expected host:port"),
        ({"metrics_listen": "tcp://x:1"}, "metrics-listen: tcp://x:1: is no address: expected host:port"),
        ({"socket_mode": "rw"}, "socket-mode: rw: expected an octal mode such as 0660"),
        ({"socket_mode": "1777"}, "socket-mode: 1777: expected an octal mode such as 0660"),
        ({"socket_group": "no-such-group"}, "socket-group: no-such-group: no such group; a number is taken"),
        ({"tls_cert": "c"}, "tls-key: is missing: TLS needs a certificate and its key"),
        ({"tls_client_ca": "a", "tls_key": "k"}, "tls-cert: is missing: TLS needs a certificate and its key"),
    ],
)
def test_a_fault_names_its_option(options: dict[str, str], fault: str) -> None:
    """The operator reads which option and why."""
    (found,) = _faults(**options)
    assert found.startswith(fault)
