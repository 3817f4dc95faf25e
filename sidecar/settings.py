"""What the process was told: command line over environment over defaults."""

from __future__ import annotations

import grp
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.address import Address, TcpAddress, UnixAddress, parse_address, parse_netloc
from sidecar.fault import Fault

__all__ = ["Address", "Settings", "SocketAccess", "TcpAddress", "TlsFiles", "UnixAddress", "read_settings"]

DEFAULT_LISTEN = "unix:///run/routing-hints/sidecar.sock"
DEFAULT_DRAIN_TIMEOUT_S = 10.0
DEFAULT_SOCKET_MODE = 0o660
LISTEN_VARIABLE = "ROUTING_HINTS_LISTEN"

_MAX_DRAIN_TIMEOUT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Who may connect to a socket file."""

    mode: int = DEFAULT_SOCKET_MODE
    group_id: int | None = None
    """None leaves the group that the system gives it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for the TCP addresses."""

    cert: Path
    """The server's certificate, with its chain."""
    key: Path
    client_ca: Path | None = None
    """Callers must show a certificate of this authority; None lets everybody call."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run."""

    listen: tuple[Address, ...]
    policy_path: Path | None
    """None takes the embedded policy."""
    drain_timeout_s: float
    metrics_listen: TcpAddress | None = None
    """None serves no metrics."""
    socket_access: SocketAccess = SocketAccess()
    tls: TlsFiles | None = None
    """None serves TCP in clear."""


def read_settings(
    *,
    listen: Sequence[str] = (),
    policy: str | None = None,
    metrics_listen: str | None = None,
    socket_mode: str | None = None,
    socket_group: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_client_ca: str | None = None,
    drain_timeout_s: str | None = None,
    insecure_bind: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Settings, list[Fault]]:
    """Returns what is right of the settings, and what is wrong with the rest.

    Args:
        listen: addresses, `unix:///path` or `tcp://host:port`; they replace those of the environment.
        policy: path of the policy file.
        metrics_listen: `host:port` of the HTTP side.
        socket_mode: octal mode of socket files.
        socket_group: group of socket files, a name or a number.
        tls_cert: path of the certificate chain for TCP, PEM.
        tls_key: path of its key.
        tls_client_ca: path of the authority whose certificates callers must show.
        drain_timeout_s: seconds to wait for open streams when stopping, 0 to 3,600.
        insecure_bind: permits TCP addresses without TLS that others can reach.
        environment: stands in for what is not given, `ROUTING_HINTS_LISTEN` (comma-separated) and the
            others of docs/reference.md; an empty variable counts as unset.
    """

    def choose(option: str | None, variable: str) -> str:
        return option or environment.get(variable, "").strip()

    faults: list[Fault] = []
    tls = _read_tls(
        choose(tls_cert, "ROUTING_HINTS_TLS_CERT"),
        choose(tls_key, "ROUTING_HINTS_TLS_KEY"),
        choose(tls_client_ca, "ROUTING_HINTS_TLS_CLIENT_CA"),
        faults,
    )
    policy_path = choose(policy, "ROUTING_HINTS_POLICY")
    settings = Settings(
        _read_addresses(listen, environment, faults, permits_all=insecure_bind or tls is not None),
        Path(policy_path) if policy_path else None,
        _read_timeout(drain_timeout_s, faults),
        _read_metrics_listen(choose(metrics_listen, "ROUTING_HINTS_METRICS_LISTEN"), faults),
        SocketAccess(
            _read_mode(choose(socket_mode, "ROUTING_HINTS_SOCKET_MODE"), faults),
            _read_group(choose(socket_group, "ROUTING_HINTS_SOCKET_GROUP"), faults),
        ),
        tls,
    )
    return settings, faults


def _read_addresses(
    listen: Sequence[str], environment: Mapping[str, str], faults: list[Fault], *, permits_all: bool
) -> tuple[Address, ...]:
    if not listen:
        listen = read_listen_variable(environment) or [DEFAULT_LISTEN]
    addresses = []
    for text in listen:
        try:
            address = parse_address(text)
        except ValueError as error:
            faults.append(Fault("listen", f"{text}: {error}"))
            continue
        if isinstance(address, TcpAddress) and not (permits_all or address.is_loopback):
            reason = (
                "can be reached from outside without TLS; give --tls-cert and --tls-key, "
                "or permit it with --insecure-bind"
            )
            faults.append(Fault("listen", f"{text}: {reason}"))
            continue
        addresses.append(address)
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    faults.extend(Fault("listen", f"{address}: occurs twice") for address in twice)
    return tuple(addresses)


def read_listen_variable(environment: Mapping[str, str]) -> list[str]:
    """Returns the addresses that the environment names, unchecked."""
    return [part.strip() for part in environment.get(LISTEN_VARIABLE, "").split(",") if part.strip()]


def _read_tls(cert: str, key: str, client_ca: str, faults: list[Fault]) -> TlsFiles | None:
    if cert and key:
        return TlsFiles(Path(cert), Path(key), Path(client_ca) if client_ca else None)
    if cert or key or client_ca:
        for name, value in (("tls-cert", cert), ("tls-key", key)):
            if not value:
                faults.append(Fault(name, "is missing: TLS needs a certificate and its key"))
    return None


def _read_metrics_listen(text: str, faults: list[Fault]) -> TcpAddress | None:
    try:
        return parse_netloc(text) if text else None
    except ValueError as error:
        faults.append(Fault("metrics-listen", f"{text}: {error}"))
        return None


def _read_mode(text: str, faults: list[Fault]) -> int:
    if not text:
        return DEFAULT_SOCKET_MODE
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        faults.append(Fault("socket-mode", f"{text}: expected an octal mode such as 0660"))
        return DEFAULT_SOCKET_MODE
    return mode


def _read_group(text: str, faults: list[Fault]) -> int | None:
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        faults.append(Fault("socket-group", f"{text}: no such group; a number is taken as it is"))
        return None


def _read_timeout(text: str | None, faults: list[Fault]) -> float:
    if text is None:
        return DEFAULT_DRAIN_TIMEOUT_S
    try:
        timeout_s = float(text)
        reason = "" if 0 <= timeout_s <= _MAX_DRAIN_TIMEOUT_S else "is not between 0 and 3600"
    except ValueError:
        timeout_s, reason = DEFAULT_DRAIN_TIMEOUT_S, "is no number"
    if reason:
        faults.append(Fault("drain-timeout-s", reason))
        return DEFAULT_DRAIN_TIMEOUT_S
    return timeout_s
