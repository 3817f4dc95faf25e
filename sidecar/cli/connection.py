"""How the subcommands reach a running sidecar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc

from sidecar.address import Address, TcpAddress, parse_address
from sidecar.settings import DEFAULT_LISTEN, read_listen_variable

TARGET_VARIABLE = "ROUTING_HINTS_TARGET"
DEFAULT_TIMEOUT_S = 5.0

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104, what a server listens on is asked at loopback
# The sidecar is next to us: no proxy of the environment belongs between.
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to ask, and how.

    Attributes:
        target: the sidecar.
        timeout_s: longest wait of one call, in seconds.
    """

    target: Address
    timeout_s: float
    _credentials: grpc.ChannelCredentials | None

    @contextmanager
    def open(self) -> Iterator[grpc.Channel]:
        """Gives a channel; what goes wrong with a call on it ends the command with a message.

        Raises:
            click.ClickException: a call failed.
        """
        name = _name_for_grpc(self.target)
        if self._credentials is None:
            channel = grpc.insecure_channel(name, options=_OPTIONS)
        else:
            channel = grpc.secure_channel(name, self._credentials, options=_OPTIONS)
        with channel:
            try:
                yield channel
            except grpc.RpcError as error:
                # The sync API raises errors that are calls as well, which its types don't say.
                call: Any = error
                raise click.ClickException(f"{self.target}: {call.code().name}: {call.details()}") from None


def add_connection_options(command: _CommandT) -> _CommandT:
    """Gives a command the options of `make_connection`."""
    help_text = (
        f"unix:///path or tcp://host:port.  [default: ${TARGET_VARIABLE}, else the first address "
        f"of $ROUTING_HINTS_LISTEN, else {DEFAULT_LISTEN}]"
    )
    return _add_options(command, help_text)


def add_optional_connection_options(command: _CommandT) -> _CommandT:
    """Gives the same options to a command that asks nobody unless it is told whom."""
    return _add_options(command, "Ask the sidecar at unix:///path or tcp://host:port.")


def _add_options(command: _CommandT, target_help: str) -> _CommandT:
    for option in (
        click.option("--tls-key", metavar="FILE", help="Our key (PEM)."),
        click.option("--tls-cert", metavar="FILE", help="Our certificate (PEM), where one is asked for."),
        click.option("--tls-ca", metavar="FILE", help="Trust the sidecar by this authority (PEM); uses TLS."),
        click.option(
            "--timeout-s", default=DEFAULT_TIMEOUT_S, show_default=True, help="Longest wait for an answer."
        ),
        click.option("--target", metavar="ADDRESS", help=target_help),
    ):
        command = option(command)
    return command


def make_connection(
    target: str | None,
    timeout_s: float,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Returns the connection that the options and the environment name.

    Raises:
        click.ClickException: the target is no address, or a file can't be read.
    """
    text = target or choose_target(environment)
    try:
        address = parse_address(text)
    except ValueError as error:
        raise click.ClickException(f"target: {text}: {error}") from None
    credentials = None
    if tls_ca is not None:
        pair = (tls_key, tls_cert) if tls_key and tls_cert else (None, None)
        ca, key, cert = (_read(path) for path in (tls_ca, *pair))
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
    return Connection(address, timeout_s, credentials)


def choose_target(environment: Mapping[str, str]) -> str:
    """Returns where the environment says that the sidecar is."""
    named = environment.get(TARGET_VARIABLE, "").strip()
    return named or next(iter(read_listen_variable(environment)), DEFAULT_LISTEN)


def _name_for_grpc(address: Address) -> str:
    if isinstance(address, TcpAddress):
        return TcpAddress(_WILDCARDS.get(address.host, address.host), address.port).netloc
    return f"unix:{address.path}"


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
