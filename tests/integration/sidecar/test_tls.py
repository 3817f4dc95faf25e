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

from routing_hints.address import TcpAddress
from routing_hints.errors import ConfigurationError
from sidecar.settings import TlsFiles
from tests.support.messages import AdminStub, OpenChannel
from tests.support.sidecar import SidecarServer, read_metric

StartSidecar = Callable[..., Awaitable[SidecarServer]]
_CONNECT_TIMEOUT_S = 5.0


@dataclass
class AuthorityHarness:
    """A certificate authority, and the server's files, which it signed."""

    ca: trustme.CA
    files: TlsFiles

    @classmethod
    def make(cls, folder: Path) -> AuthorityHarness:
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
def authority(tmp_path: Path) -> AuthorityHarness:
    """The authority that the sidecar starts with."""
    return AuthorityHarness.make(tmp_path)


async def _start(start_sidecar: StartSidecar, files: TlsFiles) -> SidecarServer:
    options = {} if files.client_ca is None else {"tls_client_ca": str(files.client_ca)}
    return await start_sidecar(
        listen=("tcp://localhost:0",), tls_cert=str(files.cert), tls_key=str(files.key), **options
    )


async def _is_served(server: SidecarServer, credentials: grpc.ChannelCredentials | None) -> bool:
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


async def test_callers_who_trust_the_authority_are_served_and_no_others(
    start_sidecar: StartSidecar, authority: AuthorityHarness, tmp_path: Path
) -> None:
    """Neither one who trusts another authority nor one without TLS."""
    server = await _start(start_sidecar, authority.files)
    assert await _is_served(server, authority.trust())
    (tmp_path / "other").mkdir()
    assert not await _is_served(server, AuthorityHarness.make(tmp_path / "other").trust())
    assert not await _is_served(server, None)


async def test_mutual_tls_serves_callers_with_a_certificate_of_the_client_authority_alone(
    start_sidecar: StartSidecar, authority: AuthorityHarness, tmp_path: Path
) -> None:
    client_ca = trustme.CA()
    path = tmp_path / "client-ca.crt"
    client_ca.cert_pem.write_to_path(str(path))
    files = TlsFiles(authority.files.cert, authority.files.key, path)
    server = await _start(start_sidecar, files)
    assert await _is_served(server, authority.trust(client_ca.issue_cert("worker")))
    assert not await _is_served(server, authority.trust())
    assert not await _is_served(server, authority.trust(trustme.CA().issue_cert("worker")))


async def test_changed_files_hold_from_the_next_connection_on(
    start_sidecar: StartSidecar, authority: AuthorityHarness, tmp_path: Path
) -> None:
    """For callers of the new authority; those of the old one are no longer served."""
    server = await _start(start_sidecar, authority.files)
    (tmp_path / "next").mkdir()
    following = AuthorityHarness.make(tmp_path / "next")
    assert not await _is_served(server, following.trust())
    following.files.key.replace(authority.files.key)
    following.files.cert.replace(authority.files.cert)
    assert await _is_served(server, following.trust())
    assert not await _is_served(server, authority.trust())


async def test_a_symlink_swap_is_a_change(
    start_sidecar: StartSidecar, authority: AuthorityHarness, tmp_path: Path
) -> None:
    """Kubernetes renews a mounted Secret by pointing `..data` to another folder."""
    (tmp_path / "next").mkdir()
    following = AuthorityHarness.make(tmp_path / "next")
    data = tmp_path / "..data"
    data.symlink_to(tmp_path)
    server = await _start(start_sidecar, TlsFiles(data / "tls.crt", data / "tls.key"))
    assert await _is_served(server, authority.trust())
    swap = tmp_path / "..data_tmp"
    swap.symlink_to(tmp_path / "next")
    swap.replace(data)
    assert await _is_served(server, following.trust())


async def test_unusable_files_keep_the_previous_certificate_in_use_until_good_ones_come(
    start_sidecar: StartSidecar, authority: AuthorityHarness, open_channel: OpenChannel
) -> None:
    server = await _start(start_sidecar, authority.files)
    admin = AdminStub(await open_channel(server.target))
    good = authority.files.cert.read_bytes()
    assert await read_metric(admin, "tls_reloads") == {"rejected": 0}
    authority.files.cert.write_text("no certificate")
    assert await _is_served(server, authority.trust())
    assert await read_metric(admin, "tls_reloads") == {"rejected": 1}
    authority.files.cert.write_bytes(good)
    assert await _is_served(server, authority.trust())
    assert await read_metric(admin, "tls_reloads") == {"rejected": 1, "reloaded": 1}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda files: files.cert.unlink(), "No such file or directory"),
        (lambda files: files.cert.write_text("x"), "NO_CERTIFICATE|NO_START_LINE|PEM"),
        (lambda files: AuthorityHarness.make(files.cert.parent / "other"), "KEY_VALUES_MISMATCH"),
    ],
    ids=["missing", "no-pem", "other-key"],
)
async def test_unusable_files_are_a_configuration_error_at_the_start(
    start_sidecar: StartSidecar,
    authority: AuthorityHarness,
    broken: Callable[[TlsFiles], object],
    reason: str,
) -> None:
    (authority.files.cert.parent / "other").mkdir()
    made = broken(authority.files)
    if isinstance(made, AuthorityHarness):
        made.files.key.replace(authority.files.key)
    with pytest.raises(ConfigurationError, match=reason):
        await _start(start_sidecar, authority.files)
