"""TLS for the TCP addresses. Changed files are reloaded, so a renewed certificate needs no restart."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from typing import TypeAlias

import grpc
import structlog

from routing_hints.errors import ConfigurationError, ConfigurationProblem
from routing_hints.metrics import MetricStore
from sidecar.settings import TlsFiles
from sidecar.telemetry import metrics

_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class _UnusableError(Exception):
    """The files can't be used now."""


class CertificateSource:
    """Provides gRPC with the certificate for each handshake.

    Each handshake compares the files, which also detects the symlink swap of a Kubernetes Secret. If a
    changed file is unusable, the previous certificate stays in use.

    Args:
        files: certificate, key and client CA.
        store: counts `tls_reloads`.

    Raises:
        ConfigurationError: the files are unusable now.
    """

    def __init__(self, files: TlsFiles, store: MetricStore) -> None:
        self._files = files
        self._store = store
        store.add(metrics.TLS_RELOADS, "rejected", amount=0)
        self._log = structlog.get_logger("sidecar")
        # gRPC calls `_fetch` from its own threads.
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._stamp = self._read_stamp()
        try:
            self._current = self._load()
        except _UnusableError as error:
            raise ConfigurationError([ConfigurationProblem("tls", str(error))]) from None

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
            self._log.error("tls_certificate_rejected", cert=str(self._files.cert), reason=str(error))
            self._count_later("rejected")
        else:
            self._log.info("tls_certificate_reloaded", cert=str(self._files.cert))
            self._count_later("reloaded")

    def _count_later(self, outcome: str) -> None:
        self._loop.call_soon_threadsafe(lambda: self._store.add(metrics.TLS_RELOADS, outcome))

    def _load(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._files.cert, self._files.key, self._files.client_ca
        # OpenSSL checks that key and certificate match; gRPC would only fail each handshake.
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
        return error.reason or "is not a PEM file"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
