"""The settings of the process: command line over environment over defaults.

Each field is an option of `serve` and a variable of the environment: `metrics_listen` is `--metrics-listen`
and `ROUTING_HINTS_METRICS_LISTEN`.
"""

from __future__ import annotations

import grp
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core.core_schema import ValidationInfo

from routing_hints.address import DEFAULT_TARGET, Address, TcpAddress, parse_address, parse_netloc
from routing_hints.errors import ConfigurationError, ConfigurationProblem

_PREFIX = "ROUTING_HINTS_"
_NOT_GIVEN = (None, "", ())
_TRUE = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Who may connect to a socket file."""

    mode: int = 0o660
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


def _parse_mode(text: object) -> int:
    try:
        mode = int(str(text), 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ValueError(f"{text}: expected an octal mode such as 0660")
    return mode


def _find_group(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise ValueError(f"{text}: no such group; a number is taken as it is") from None


def _parse_http_address(text: str) -> TcpAddress:
    try:
        return parse_netloc(text)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


class Settings(BaseModel):
    """The settings of one run."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    insecure_bind: Annotated[bool, BeforeValidator(lambda value: _TRUE.get(str(value).lower(), value))] = (
        Field(default=False, description="Permit TCP addresses without TLS that others can reach.")
    )
    tls_cert: Path | None = Field(
        default=None,
        description="Serve TCP with TLS by this certificate chain (PEM).",
        json_schema_extra={"metavar": "FILE"},
    )
    tls_key: Path | None = Field(
        default=None,
        description="Private key of that certificate (PEM).",
        validate_default=True,
        json_schema_extra={"metavar": "FILE"},
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="Callers must show a certificate of this authority (PEM).",
        json_schema_extra={"metavar": "FILE"},
    )
    listen: tuple[Address, ...] = Field(
        default=(parse_address(DEFAULT_TARGET),),
        description="unix:///path or tcp://host:port; may be given several times (in the variable, commas).  "
        f"[default: {DEFAULT_TARGET}]",
        json_schema_extra={"metavar": "ADDRESS"},
    )
    metrics_listen: Annotated[TcpAddress, BeforeValidator(_parse_http_address)] | None = Field(
        default=None,
        description="Serve /metrics, /livez and /readyz over HTTP.",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    policy: Path | None = Field(
        default=None,
        description="Policy file (YAML).  [default: the embedded policy]",
        json_schema_extra={"metavar": "FILE"},
    )
    socket_mode: Annotated[int, BeforeValidator(_parse_mode)] = Field(
        default=0o660,
        description="Permission bits of the Unix socket (octal).  [default: 0660]",
        json_schema_extra={"metavar": "MODE"},
    )
    socket_group: Annotated[int, BeforeValidator(_find_group)] | None = Field(
        default=None,
        description="Group of the Unix socket, a name or a number.",
        json_schema_extra={"metavar": "GROUP"},
    )
    drain_timeout_s: float = Field(
        default=10.0,
        ge=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds that SIGTERM waits for open streams.  [default: 10]",
        json_schema_extra={"metavar": "SECONDS"},
    )

    @property
    def socket_access(self) -> SocketAccess:
        """Who may use socket files."""
        return SocketAccess(self.socket_mode, self.socket_group)

    @property
    def tls(self) -> TlsFiles | None:
        """What TCP is served with; None serves it in clear."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @field_validator("tls_key")
    @classmethod
    def _check_pair(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if (key is None) != (info.data.get("tls_cert") is None):
            raise ValueError("TLS needs a certificate and its key: give --tls-cert and --tls-key")
        return key

    @field_validator("tls_client_ca")
    @classmethod
    def _check_authority(cls, client_ca: Path | None, info: ValidationInfo) -> Path | None:
        if client_ca is not None and info.data.get("tls_cert") is None:
            raise ValueError("TLS needs a certificate and its key: give --tls-cert and --tls-key")
        return client_ca

    @field_validator("listen", mode="before")
    @classmethod
    def _read_addresses(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[Address, ...]:
        addresses, problems = [], []
        permits_all = info.data.get("insecure_bind") or info.data.get("tls_cert") is not None
        for text in texts:
            try:
                address = parse_address(text)
            except ValueError as error:
                problems.append(f"{text}: {error}")
                continue
            addresses.append(address)
            if isinstance(address, TcpAddress) and not (permits_all or address.is_loopback):
                problems.append(
                    f"{text}: can be reached from outside without TLS; give --tls-cert and --tls-key, "
                    "or permit it with --insecure-bind"
                )
        twice = [address for address, count in Counter(addresses).items() if count > 1]
        problems.extend(f"{address}: occurs twice" for address in twice)
        if problems:
            raise ValueError("\n".join(problems))
        return tuple(addresses)


class SettingsError(ConfigurationError):
    """Something is wrong with the settings.

    Attributes:
        policy: the policy file, if one is given.
        addresses: those of the given addresses that can be read.
    """

    def __init__(
        self, problems: Sequence[ConfigurationProblem], policy: Path | None, addresses: tuple[Address, ...]
    ) -> None:
        super().__init__(problems)
        self.policy = policy
        self.addresses = addresses


def read_settings(environment: Mapping[str, str] = os.environ, **options: object) -> Settings:
    """Returns the settings.

    Args:
        environment: stands in for what is not given; an empty variable counts as unset.
        options: by field name, as text; an empty one counts as not given.

    Raises:
        SettingsError: something is wrong; names all of it.
    """
    given: dict[str, Any] = {}
    for name in Settings.model_fields:
        value = options.get(name)
        if value in _NOT_GIVEN:
            value = environment.get(name_variable(name), "").strip()
        if value not in _NOT_GIVEN:
            given[name] = value
    if isinstance(given.get("listen"), str):
        given["listen"] = split_addresses(given["listen"])
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        problems = [
            ConfigurationProblem(str(detail["loc"][0]).replace("_", "-"), reason)
            for detail in error.errors()
            for reason in detail["msg"].removeprefix("Value error, ").split("\n")
        ]
        policy = given.get("policy")
        addresses = tuple(_read_readable(given.get("listen", ()), given.get("metrics_listen", "")))
        raise SettingsError(problems, policy and Path(policy), addresses) from None


def _read_readable(listen: Iterable[str], metrics_listen: str) -> Iterator[Address]:
    for text in listen:
        with suppress(ValueError):
            yield parse_address(text)
    with suppress(ValueError):
        yield parse_netloc(metrics_listen)


def name_variable(field: str) -> str:
    """Returns the environment variable of a setting."""
    return _PREFIX + field.upper()


def split_addresses(text: str) -> list[str]:
    """Returns the addresses of a list that is separated by commas, unchecked."""
    return [part.strip() for part in text.split(",") if part.strip()]
