"""Who may connect to the socket file."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.sidecar import SidecarServer

StartSidecar = Callable[..., Awaitable[SidecarServer]]
_SOME_GROUP = 4711


def _stat(server: SidecarServer) -> os.stat_result:
    return Path(server.target.removeprefix("unix:")).stat()


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o666])
async def test_the_socket_has_the_mode_of_the_setting_whatever_the_umask(
    start_sidecar: StartSidecar, mode: int
) -> None:
    server = await start_sidecar(socket_mode=f"{mode:04o}")
    assert stat.S_IMODE(_stat(server).st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to a group that it is not in")
async def test_the_socket_has_the_group_of_the_setting(start_sidecar: StartSidecar) -> None:
    """So that a worker of that group may connect, and nobody else."""
    server = await start_sidecar(socket_group=str(_SOME_GROUP))
    found = _stat(server)
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (_SOME_GROUP, 0o660)
