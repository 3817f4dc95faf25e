from __future__ import annotations

from pathlib import Path

import pytest

from routing_hints.address import TcpAddress, UnixAddress, parse_address, parse_netloc


@pytest.mark.parametrize(
    ("text", "address", "grpc_target"),
    [
        ("unix:///run/a.sock", UnixAddress(Path("/run/a.sock")), "unix:/run/a.sock"),
        ("unix:/run/a.sock", UnixAddress(Path("/run/a.sock")), "unix:/run/a.sock"),
        (
            "unix:///run/with space.sock",
            UnixAddress(Path("/run/with space.sock")),
            "unix:/run/with space.sock",
        ),
        ("tcp://127.0.0.1:50051", TcpAddress("127.0.0.1", 50051), "127.0.0.1:50051"),
        ("tcp://sidecar.svc:1", TcpAddress("sidecar.svc", 1), "sidecar.svc:1"),
        ("tcp://[::1]:50051", TcpAddress("::1", 50051), "[::1]:50051"),
    ],
)
def test_both_processes_read_one_spelling(
    text: str, address: UnixAddress | TcpAddress, grpc_target: str
) -> None:
    assert parse_address(text) == address
    assert address.grpc_target == grpc_target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/run/a.sock",
        "unix:a.sock",
        "unix://a.sock",
        "tcp://:1",
        "tcp://h",
        "tcp://h:",
        "tcp://h:65536",
        "tcp://h:x",
        "tcp://::1:50051",
        "tcp://h:1/path",
        "tcp://h:1?query",
        "tcp://user@h:1",
        "http://h:1",
    ],
)
def test_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid address: expected unix:///path or tcp://host:port"):
        parse_address(text)


@pytest.mark.parametrize("path", ["/run/a%20b", "/run/a?b", "/run/a#b", "/run/a\nb", "/run/a\udcff"])
def test_socket_path_with_a_character_that_grpc_reads_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="a character that gRPC can't take"):
        parse_address(f"unix://{path}")


def test_socket_path_has_at_most_107_bytes() -> None:
    longest = "/" + "a" * 106
    assert parse_address(f"unix://{longest}") == UnixAddress(Path(longest))
    with pytest.raises(ValueError, match="longer than 107 bytes"):
        parse_address(f"unix://{longest}a")


def test_netloc_is_host_and_port() -> None:
    assert parse_netloc("[::1]:9464") == TcpAddress("::1", 9464)
    with pytest.raises(ValueError, match="not a valid address: expected host:port"):
        parse_netloc("9464")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("10.0.0.1", False),
        ("sidecar.svc", False),
    ],
)
def test_only_loopback_addresses_and_localhost_are_loopback(host: str, is_loopback: bool) -> None:
    """Another name may resolve to an address that others can reach."""
    assert TcpAddress(host, 1).is_loopback is is_loopback


@pytest.mark.parametrize("text", ["unix:///run/a.sock", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_address_prints_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text
