"""Connects the subcommands to a running sidecar, and ends them with an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import grpc

from routing_hints.address import DEFAULT_TARGET, Address, TcpAddress, parse_address
from routing_hints.errors import ConfigurationProblem
from sidecar.settings import name_variable, split_addresses

TARGET_VARIABLE = "ROUTING_HINTS_TARGET"
DEFAULT_TIMEOUT_S = 5.0
BAD_CONFIGURATION = 2
"""Exit code for invalid settings, policies and options."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104, a server on all interfaces is called at loopback
# The sidecar is local: a proxy set in the environment must not be used.
_OPTIONS = (("grpc.enable_http_proxy", 0),)

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a sidecar.

    Attributes:
        target: the sidecar's address.
        timeout_s: deadline of each call, in seconds.
    """

    target: Address
    timeout_s: float
    _credentials: grpc.ChannelCredentials | None

    @contextmanager
    def open(self) -> Iterator[grpc.Channel]:
        """Opens a channel; a failed call on it ends the command with a message.

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
                # The sync API raises errors that are also calls, which its types do not express.
                call: Any = error
                raise click.ClickException(f"{self.target}: {call.code().name}: {call.details()}") from None


def add_connection_options(command: _CommandT) -> _CommandT:
    """Adds the options of `make_connection` to a command."""
    help_text = (
        f"unix:///path or tcp://host:port.  [default: ${TARGET_VARIABLE}, else the first address "
        f"of $ROUTING_HINTS_LISTEN, else {DEFAULT_TARGET}]"
    )
    return _add_options(command, help_text)


def add_optional_connection_options(command: _CommandT) -> _CommandT:
    """Adds the connection options to a command that works offline unless --target is given."""
    return _add_options(command, "Call the sidecar at unix:///path or tcp://host:port.")


def _add_options(command: _CommandT, target_help: str) -> _CommandT:
    for option in (
        click.option("--tls-key", metavar="FILE", help="Client private key (PEM)."),
        click.option(
            "--tls-cert", metavar="FILE", help="Client certificate (PEM), for a sidecar that requires one."
        ),
        click.option("--tls-ca", metavar="FILE", help="CA to verify the sidecar against (PEM); uses TLS."),
        click.option(
            "--timeout-s", default=DEFAULT_TIMEOUT_S, show_default=True, help="Deadline of the call."
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
    """Returns the connection given by the options and the environment.

    Raises:
        click.ClickException: the target is not a valid address, or a file can't be read.
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
    """Returns the sidecar's address by the environment; the default address if it names none."""
    target = environment.get(TARGET_VARIABLE, "").strip()
    return target or next(iter(split_addresses(environment.get(name_variable("listen"), ""))), DEFAULT_TARGET)


def _name_for_grpc(address: Address) -> str:
    if isinstance(address, TcpAddress):
        return TcpAddress(_WILDCARDS.get(address.host, address.host), address.port).netloc
    return address.grpc_target


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


def exit_with_problems(problems: Iterable[ConfigurationProblem]) -> NoReturn:
    """Prints every problem to stderr and exits with `BAD_CONFIGURATION`."""
    for problem in problems:
        click.echo(str(problem), err=True)
    sys.exit(BAD_CONFIGURATION)
