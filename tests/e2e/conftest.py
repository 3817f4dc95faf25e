"""Stacks for the end-to-end tests. They run by `make e2e` and `make e2e-old`, each in its own environment."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

SIOCGIFFLAGS, IFF_UP = 0x8913, 1

# An environment without Dynamo, such as the one of `make test`, has nothing to run here.
collect_ignore_glob = [] if importlib.util.find_spec("dynamo") else ["test_*.py", "old/test_*.py"]


def pytest_sessionstart() -> None:
    """Refuses to run where others could reach what the tests start."""
    if collect_ignore_glob:
        return
    foreign = [name for _, name in socket.if_nameindex() if name != "lo" and _is_up(name)]
    if foreign:
        pytest.exit(f"end-to-end tests need a network namespace of their own, found {foreign}", returncode=2)


@pytest.fixture(scope="module")
def make_stack() -> Iterator[Callable[[], Stack]]:
    """Makes stacks that end with the module."""
    made: list[Stack] = []
    with tempfile.TemporaryDirectory(prefix="rh") as folder:

        def make() -> Stack:
            path = Path(folder, str(len(made)))
            path.mkdir()
            made.append(Stack(path, interface=os.environ.get("E2E_STREAM_INTERFACE", "127.0.0.1")))
            return made[-1]

        yield make
        for stack in made:
            stack.stop()


def _is_up(interface: str) -> bool:
    # By ioctl, since /sys still shows the namespace in which it was mounted. Source: netdevice(7).
    request = struct.pack("16s16x", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFFLAGS, request)
    (flags,) = struct.unpack_from("16xH", answer)
    return bool(flags & IFF_UP)
