"""What the process is told, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.settings import Settings, TcpAddress, UnixAddress, read_settings

_DEFAULT = UnixAddress(Path("/run/routing-hints/sidecar.sock"))


def _read(environment: dict[str, str] | None = None, **options: Any) -> Settings:
    settings, faults = read_settings(environment=environment or {}, **options)
    assert faults == []
    return settings


def _faults(environment: dict[str, str] | None = None, **options: Any) -> list[str]:
    return [str(fault) for fault in read_settings(environment=environment or {}, **options)[1]]


def test_without_options_the_unix_socket_alone_is_served() -> None:
    """Nothing listens on TCP unless it is asked for, and the embedded policy is taken."""
    assert _read() == Settings((_DEFAULT,), None, 10.0)


def test_the_command_line_replaces_the_environment() -> None:
    """Options win over variables, variables over defaults."""
    environment = {"ROUTING_HINTS_LISTEN": "unix:///a, tcp://127.0.0.1:1", "ROUTING_HINTS_POLICY": "p.yaml"}
    settings = _read(environment)
    assert settings.listen == (UnixAddress(Path("/a")), TcpAddress("127.0.0.1", 1))
    assert settings.policy_path == Path("p.yaml")
    settings = _read(environment, listen=["unix:///b"], policy="q.yaml")
    assert (settings.listen, settings.policy_path) == ((UnixAddress(Path("/b")),), Path("q.yaml"))


def test_an_empty_variable_is_unset() -> None:
    """A variable that a template left empty has no effect."""
    settings = _read({"ROUTING_HINTS_LISTEN": " ", "ROUTING_HINTS_POLICY": ""})
    assert settings == Settings((_DEFAULT,), None, 10.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://localhost:50051", TcpAddress("localhost", 50051)),
        ("tcp://127.8.0.1:0", TcpAddress("127.8.0.1", 0)),
        ("tcp://[::1]:50051", TcpAddress("::1", 50051)),
    ],
)
def test_loopback_addresses_are_permitted(text: str, expected: TcpAddress) -> None:
    """Who listens on loopback needs no further word, and the address prints as it was written."""
    assert _read(listen=[text]).listen == (expected,)
    assert str(expected) == text


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1", "tcp://sidecar:1"])
def test_reachable_addresses_need_a_word(text: str) -> None:
    """An address that others can reach is refused unless the operator insists."""
    assert _faults(listen=[text]) == [
        (
            f"listen: {text}: can be reached from outside without TLS; give --tls-cert and --tls-key, "
            "or permit it with --insecure-bind"
        )
    ]
    assert len(_read(listen=[text], insecure_bind=True).listen) == 1


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:50051",
        "tcp://127.0.0.1",
        "tcp://:50051",
        "tcp://127.0.0.1:port",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:1/x",
        "unix://relative/path",
        "unix:",
        "http://127.0.0.1:1",
        "tcp://[::1:1",
    ],
)
def test_what_is_no_address_is_a_fault(text: str) -> None:
    """The fault says what an address looks like."""
    assert _faults(listen=[text]) == [
        f"listen: {text}: is no address: expected unix:///path or tcp://host:port"
    ]


def test_a_socket_path_has_a_limit() -> None:
    """Linux permits 107 bytes."""
    assert _read(listen=["unix:///" + "a" * 106])
    assert "longer than 107 bytes" in _faults(listen=["unix:///" + "a" * 107])[0]


@pytest.mark.parametrize("text", ["-1", "3601", "nan", "inf", "soon", ""])
def test_a_bad_drain_timeout_is_a_fault(text: str) -> None:
    """The timeout is a number of seconds up to an hour."""
    assert _faults(drain_timeout_s=text)[0].startswith("drain-timeout-s: is n")


def test_all_faults_come_at_once() -> None:
    """One run shows everything that is wrong."""
    faults = _faults(listen=["x", "unix:///a", "unix:///a", "tcp://0.0.0.0:1"], drain_timeout_s="x")
    assert [fault.split(": ")[1] for fault in faults] == ["x", "tcp://0.0.0.0:1", "unix:///a", "is no number"]
