"""TLS for the TCP addresses. The files are read again when they change, so a renewal needs no restart."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from typing import TypeAlias

import grpc
import structlog

from sidecar.fault import ConfigurationError, Fault
from sidecar.settings import TlsFiles
from sidecar.telemetry.counters import Counters

_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class _UnusableError(Exception):
    """The files can't be served now."""


class CertificateSource:
    """Gives gRPC the certificate for each handshake.

    Files are compared at each handshake rather than watched, which also sees the symlink swap of a
    Kubernetes Secret. A changed file that is unusable keeps the certificate before it.

    Args:
        files: what to serve.
        counters: gets `tls_reloads`.

    Raises:
        ConfigurationError: the files are unusable now.
    """

    def __init__(self, files: TlsFiles, counters: Counters) -> None:
        self._files = files
        self._counters = counters
        counters.declare("tls_reloads", ("outcome", "refused"))
        self._log = structlog.get_logger("sidecar")
        # gRPC asks from threads of its own.
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._stamp = self._read_stamp()
        try:
            self._current = self._load()
        except _UnusableError as error:
            raise ConfigurationError([Fault("tls", str(error))]) from None

    def make_credentials(self) -> grpc.ServerCredentials:
        """Returns credentials that follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._current, self._fetch, require_client_authentication=self._files.client_ca is not None
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        with self._lock:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._reload(stamp)
            return self._current

    def _reload(self, stamp: _Stamp) -> None:
        self._stamp = stamp
        try:
            self._current = self._load()
        except _UnusableError as error:
            self._log.error("tls_reload_refused", cert=str(self._files.cert), reason=str(error))
            self._count_later("refused")
        else:
            self._log.info("tls_reload_taken", cert=str(self._files.cert))
            self._count_later("taken")

    def _count_later(self, outcome: str) -> None:
        self._loop.call_soon_threadsafe(lambda: self._counters.add("tls_reloads", ("outcome", outcome)))

    def _load(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._files.cert, self._files.key, self._files.client_ca
        # OpenSSL says whether they belong together; gRPC itself would only fail each handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(cert, key, password=_refuse_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise _UnusableError(f"{cert} with {key}: {_describe(error)}") from None
        if client_ca is not None:
            try:
                context.load_verify_locations(client_ca)
            except (ssl.SSLError, OSError) as error:
                raise _UnusableError(f"{client_ca}: {_describe(error)}") from None
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), cert.read_bytes())],
            root_certificates=client_ca.read_bytes() if client_ca is not None else None,
        )

    def _read_stamp(self) -> _Stamp:
        paths = (self._files.cert, self._files.key, self._files.client_ca)
        return tuple(_stamp(path) for path in paths if path is not None)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "is no PEM file"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
