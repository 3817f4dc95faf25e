"""TLS and mTLS on a real port, and what a change of the files does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_hints.v1 import admin_pb2, admin_pb2_grpc
from sidecar.address import TcpAddress
from sidecar.fault import ConfigurationError
from sidecar.settings import TlsFiles
from tests.support.sidecar import SidecarServer

StartSidecar = Callable[..., Awaitable[SidecarServer]]
_CONNECT_TIMEOUT_S = 5.0


@dataclass
class _Authority:
    """An authority, and the server's files, which it signed."""

    ca: trustme.CA
    files: TlsFiles

    @classmethod
    def make(cls, folder: Path) -> _Authority:
        files = TlsFiles(folder / "tls.crt", folder / "tls.key")
        authority = cls(trustme.CA(), files)
        authority.renew()
        return authority

    def renew(self) -> None:
        """Writes a new certificate of this authority."""
        issued = self.ca.issue_cert("localhost")
        self.files.key.write_bytes(issued.private_key_pem.bytes())
        self.files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def trust(self, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
        """A caller's credentials: trusts this authority, and shows a certificate if it has one."""
        ca = self.ca.cert_pem.bytes()
        if client is None:
            return grpc.ssl_channel_credentials(ca)
        return grpc.ssl_channel_credentials(
            ca, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )


@pytest.fixture
def authority(tmp_path: Path) -> _Authority:
    """The authority that the sidecar starts with."""
    return _Authority.make(tmp_path)


async def _start(start_sidecar: StartSidecar, files: TlsFiles) -> SidecarServer:
    return await start_sidecar(listen=(TcpAddress("localhost", 0),), tls=files)


async def _is_answered(server: SidecarServer, credentials: grpc.ChannelCredentials | None) -> bool:
    address = server.app.addresses[1]
    assert isinstance(address, TcpAddress)
    options = (("grpc.use_local_subchannel_pool", 1),)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address.netloc, options=options)
    else:
        channel = grpc.aio.secure_channel(address.netloc, credentials, options=options)
    async with channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            await check(health_pb2.HealthCheckRequest(), timeout=_CONNECT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
        return True


async def _count_reloads(server: SidecarServer) -> dict[str, int]:
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        stats = await stub.GetStats(admin_pb2.GetStatsRequest())
    return {entry.labels["outcome"]: entry.value for entry in stats.counters if entry.name == "tls_reloads"}


async def test_callers_who_trust_the_authority_are_answered(
    start_sidecar: StartSidecar, authority: _Authority, tmp_path: Path
) -> None:
    """One who trusts another authority or speaks in clear is not."""
    server = await _start(start_sidecar, authority.files)
    assert await _is_answered(server, authority.trust())
    (tmp_path / "other").mkdir()
    assert not await _is_answered(server, _Authority.make(tmp_path / "other").trust())
    assert not await _is_answered(server, None)


async def test_mutual_tls_asks_for_a_certificate(
    start_sidecar: StartSidecar, authority: _Authority, tmp_path: Path
) -> None:
    """One of the named authority is taken; none, or one of somebody else, is not."""
    client_ca = trustme.CA()
    path = tmp_path / "client-ca.crt"
    client_ca.cert_pem.write_to_path(str(path))
    files = TlsFiles(authority.files.cert, authority.files.key, path)
    server = await _start(start_sidecar, files)
    assert await _is_answered(server, authority.trust(client_ca.issue_cert("worker")))
    assert not await _is_answered(server, authority.trust())
    assert not await _is_answered(server, authority.trust(trustme.CA().issue_cert("worker")))


async def test_a_change_of_the_files_is_taken_by_the_next_connection(
    start_sidecar: StartSidecar, authority: _Authority, tmp_path: Path
) -> None:
    """After the swap callers of the new authority are answered and those of the old one are not."""
    server = await _start(start_sidecar, authority.files)
    (tmp_path / "next").mkdir()
    following = _Authority.make(tmp_path / "next")
    assert not await _is_answered(server, following.trust())
    following.files.key.replace(authority.files.key)
    following.files.cert.replace(authority.files.cert)
    assert await _is_answered(server, following.trust())
    assert not await _is_answered(server, authority.trust())


async def test_a_symlink_swap_is_a_change(
    start_sidecar: StartSidecar, authority: _Authority, tmp_path: Path
) -> None:
    """Kubernetes renews a mounted Secret by pointing `..data` to another folder."""
    (tmp_path / "next").mkdir()
    following = _Authority.make(tmp_path / "next")
    data = tmp_path / "..data"
    data.symlink_to(tmp_path)
    server = await _start(start_sidecar, TlsFiles(data / "tls.crt", data / "tls.key"))
    assert await _is_answered(server, authority.trust())
    swap = tmp_path / "..data_tmp"
    swap.symlink_to(tmp_path / "next")
    swap.replace(data)
    assert await _is_answered(server, following.trust())


async def test_unusable_files_keep_the_certificate_before_them(
    start_sidecar: StartSidecar, authority: _Authority
) -> None:
    """Callers go on being answered, and the next good files are taken."""
    server = await _start(start_sidecar, authority.files)
    good = authority.files.cert.read_bytes()
    authority.files.cert.write_text("no certificate")
    assert await _is_answered(server, authority.trust())
    assert await _count_reloads(server) == {"refused": 1}
    authority.files.cert.write_bytes(good)
    assert await _is_answered(server, authority.trust())
    assert await _count_reloads(server) == {"refused": 1, "taken": 1}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda files: files.cert.unlink(), "No such file or directory"),
        (lambda files: files.cert.write_text("x"), "NO_CERTIFICATE|NO_START_LINE|PEM"),
        (lambda files: _Authority.make(files.cert.parent / "other"), "KEY_VALUES_MISMATCH"),
    ],
    ids=["missing", "no-pem", "other-key"],
)
async def test_unusable_files_are_said_at_the_start(
    start_sidecar: StartSidecar,
    authority: _Authority,
    broken: Callable[[TlsFiles], object],
    reason: str,
) -> None:
    """The fault names the files and what is wrong with them."""
    (authority.files.cert.parent / "other").mkdir()
    made = broken(authority.files)
    if isinstance(made, _Authority):
        made.files.key.replace(authority.files.key)
    with pytest.raises(ConfigurationError, match=reason):
        await _start(start_sidecar, authority.files)
