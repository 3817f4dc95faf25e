"""The settings of the process, and everything that can be wrong with them."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import Any

import pytest

from routing_hints.address import TcpAddress, UnixAddress
from routing_hints.errors import ConfigurationError
from sidecar.settings import Settings, SocketAccess, TlsFiles, name_variable, read_settings, split_addresses

_TLS_PAIR = {"tls_cert": "c", "tls_key": "k"}
_INCOMPLETE_TLS = "TLS needs a certificate and its key: give --tls-cert and --tls-key"

# For each field: its variable, two texts, and what they mean.
_FIELDS: dict[str, tuple[str, tuple[str, Any], tuple[str, Any]]] = {
    "listen": (
        "ROUTING_HINTS_LISTEN",
        ("unix:///a, tcp://127.0.0.1:1", (UnixAddress(Path("/a")), TcpAddress("127.0.0.1", 1))),
        ("unix:///b", (UnixAddress(Path("/b")),)),
    ),
    "metrics_listen": (
        "ROUTING_HINTS_METRICS_LISTEN",
        ("0.0.0.0:9464", TcpAddress("0.0.0.0", 9464)),  # noqa: S104
        ("[::1]:0", TcpAddress("::1", 0)),
    ),
    "policy": ("ROUTING_HINTS_POLICY", ("p.yaml", Path("p.yaml")), ("q.yaml", Path("q.yaml"))),
    "insecure_bind": ("ROUTING_HINTS_INSECURE_BIND", ("true", True), ("no", False)),
    "tls_cert": ("ROUTING_HINTS_TLS_CERT", ("c", Path("c")), ("d", Path("d"))),
    "tls_key": ("ROUTING_HINTS_TLS_KEY", ("k", Path("k")), ("l", Path("l"))),
    "tls_client_ca": ("ROUTING_HINTS_TLS_CLIENT_CA", ("a", Path("a")), ("b", Path("b"))),
    "socket_mode": ("ROUTING_HINTS_SOCKET_MODE", ("0666", 0o666), ("600", 0o600)),
    "socket_group": ("ROUTING_HINTS_SOCKET_GROUP", ("4711", 4711), ("0", 0)),
    "drain_timeout_s": ("ROUTING_HINTS_DRAIN_TIMEOUT_S", ("2.5", 2.5), ("0", 0.0)),
}
# What a field needs beside it to be valid.
_COMPANIONS = {
    "tls_cert": {"tls_key": "k"},
    "tls_key": {"tls_cert": "c"},
    "tls_client_ca": _TLS_PAIR,
}


def _read(environment: dict[str, str] | None = None, **options: Any) -> Settings:
    return read_settings(environment or {}, **options)


def _list_problems(environment: dict[str, str] | None = None, **options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(environment or {}, **options)
    return [str(problem) for problem in caught.value.problems]


def test_every_field_has_a_case_below() -> None:
    assert _FIELDS.keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("name", _FIELDS)
def test_field_is_read_from_its_variable(name: str) -> None:
    """A container is configured without a command line."""
    variable, *cases = _FIELDS[name]
    assert name_variable(name) == variable
    for text, expected in cases:
        assert getattr(_read({variable: text}, **_COMPANIONS.get(name, {})), name) == expected


@pytest.mark.parametrize("name", _FIELDS)
def test_command_line_wins_over_the_environment(name: str) -> None:
    variable, (first, _), (second, expected) = _FIELDS[name]
    options = {name: second, **_COMPANIONS.get(name, {})}
    assert getattr(_read({variable: first}, **options), name) == expected


@pytest.mark.parametrize("name", _FIELDS)
def test_empty_variable_and_empty_option_are_unset(name: str) -> None:
    """A template may leave a variable empty."""
    default = _read()
    for blank in ("", " "):
        assert _read({_FIELDS[name][0]: blank}) == default
    assert _read(**{name: ""}) == default
    assert _read(**{name: None}) == default


def test_unix_socket_alone_is_served_by_default() -> None:
    """No TCP, no HTTP side, the embedded policy, and socket files for owner and group."""
    settings = _read()
    assert settings.listen == (UnixAddress(Path("/run/routing-hints/sidecar.sock")),)
    assert (settings.metrics_listen, settings.tls, settings.policy) == (None, None, None)
    assert settings.socket_access == SocketAccess(0o660, None)
    assert settings.drain_timeout_s == 10.0
    assert not settings.insecure_bind


def test_other_variables_of_the_environment_are_ignored() -> None:
    """The worker client's variables may be in the same environment."""
    assert _read({"ROUTING_HINTS_AFFINITY": "on", "LISTEN": "x"}) == _read()


def test_listen_may_be_given_several_times() -> None:
    settings = _read({"ROUTING_HINTS_LISTEN": "unix:///c"}, listen=["unix:///a", "unix:///b"])
    assert settings.listen == (UnixAddress(Path("/a")), UnixAddress(Path("/b")))


def test_address_list_drops_empty_parts() -> None:
    assert split_addresses(" unix:///a,, tcp://h:1 ,") == ["unix:///a", "tcp://h:1"]
    assert split_addresses("") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://localhost:50051", TcpAddress("localhost", 50051)),
        ("tcp://127.8.0.1:0", TcpAddress("127.8.0.1", 0)),
        ("tcp://[::1]:50051", TcpAddress("::1", 50051)),
    ],
)
def test_loopback_address_is_permitted_and_prints_as_written(text: str, expected: TcpAddress) -> None:
    assert _read(listen=[text]).listen == (expected,)
    assert str(expected) == text


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1", "tcp://sidecar:1"])
def test_reachable_address_without_tls_is_refused_unless_the_operator_permits_it(text: str) -> None:
    assert _list_problems(listen=[text]) == [
        (
            f"listen: {text}: can be reached from outside without TLS; give --tls-cert and --tls-key, "
            "or permit it with --insecure-bind"
        )
    ]
    assert len(_read(listen=[text], insecure_bind=True).listen) == 1
    assert len(_read({"ROUTING_HINTS_INSECURE_BIND": "1"}, listen=[text]).listen) == 1
    assert len(_list_problems(listen=[text], insecure_bind="false")) == 1


def test_reachable_address_with_tls_is_permitted() -> None:
    settings = _read(listen=["tcp://0.0.0.0:1"], **_TLS_PAIR)
    assert settings.listen == (TcpAddress("0.0.0.0", 1),)  # noqa: S104
    assert settings.tls == TlsFiles(Path("c"), Path("k"), None)


def test_mutual_tls_has_the_authority_of_the_clients() -> None:
    assert _read(tls_client_ca="a", **_TLS_PAIR).tls == TlsFiles(Path("c"), Path("k"), Path("a"))


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
def test_invalid_address_is_refused_with_the_expected_spelling(text: str) -> None:
    expected = [f"listen: {text}: not a valid address: expected unix:///path or tcp://host:port"]
    assert _list_problems(listen=[text]) == expected
    assert _list_problems({"ROUTING_HINTS_LISTEN": text}) == expected


def test_socket_path_has_at_most_107_bytes() -> None:
    """As on Linux."""
    assert _read(listen=["unix:///" + "a" * 106])
    assert "longer than 107 bytes" in _list_problems(listen=["unix:///" + "a" * 107])[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1", "greater than or equal to 0"),
        ("3601", "less than or equal to 3600"),
        ("nan", ""),
        ("inf", ""),
        ("soon", "valid number"),
    ],
)
def test_drain_timeout_is_a_number_of_seconds_up_to_an_hour(text: str, reason: str) -> None:
    (problem,) = _list_problems(drain_timeout_s=text)
    assert problem.startswith("drain-timeout-s: Input should be ")
    assert reason in problem
    assert _read(drain_timeout_s="3600").drain_timeout_s == 3_600.0


def test_socket_group_may_be_a_name() -> None:
    group = grp.getgrgid(os.getegid())
    assert _read(socket_group=group.gr_name).socket_access.group_id == group.gr_gid


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"metrics_listen": "9464"}, ["metrics-listen: 9464: not a valid address: expected host:port"]),
        (
            {"metrics_listen": "tcp://x:1"},
            ["metrics-listen: tcp://x:1: not a valid address: expected host:port"],
        ),
        ({"socket_mode": "rw"}, ["socket-mode: rw: expected an octal mode such as 0660"]),
        ({"socket_mode": "1777"}, ["socket-mode: 1777: expected an octal mode such as 0660"]),
        (
            {"socket_group": "no-such-group"},
            ["socket-group: no-such-group: no such group; a number is taken as it is"],
        ),
        ({"tls_cert": "c"}, [f"tls-key: {_INCOMPLETE_TLS}"]),
        ({"tls_key": "k"}, [f"tls-key: {_INCOMPLETE_TLS}"]),
        ({"tls_client_ca": "a"}, [f"tls-client-ca: {_INCOMPLETE_TLS}"]),
        (
            {"tls_client_ca": "a", "tls_key": "k"},
            [f"tls-key: {_INCOMPLETE_TLS}", f"tls-client-ca: {_INCOMPLETE_TLS}"],
        ),
        (
            {"insecure_bind": "maybe"},
            ["insecure-bind: Input should be a valid boolean, unable to interpret input"],
        ),
    ],
)
def test_problem_names_its_option_and_the_reason(options: dict[str, str], problems: list[str]) -> None:
    assert _list_problems(**options) == problems


def test_all_problems_come_at_once() -> None:
    """One run shows everything that is wrong."""
    problems = _list_problems(
        {"ROUTING_HINTS_SOCKET_MODE": "rw", "ROUTING_HINTS_METRICS_LISTEN": "9464"},
        listen=["x", "unix:///a", "unix:///a", "tcp://0.0.0.0:1"],
        drain_timeout_s="x",
        tls_key="k",
    )
    assert [": ".join(problem.split(": ")[:2]) for problem in problems] == [
        f"tls-key: {_INCOMPLETE_TLS.split(': ')[0]}",
        "listen: x",
        "listen: tcp://0.0.0.0:1",
        "listen: unix:///a",
        "metrics-listen: 9464",
        "socket-mode: rw",
        "drain-timeout-s: Input should be a valid number, unable to parse string as a number",
    ]
