"""Connections to the sidecar of a test: `sidecar` is what that test starts, in its loop or as a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import grpc.aio
import pytest

from tests.support.messages import AdminStub, HintsStub, OpenChannel, WorkerStream


@pytest.fixture
async def open_channel() -> AsyncIterator[OpenChannel]:
    """Opens a connection of its own each time; gRPC shares one between channels whose options are equal."""
    numbers = count(1)
    async with AsyncExitStack() as stack:

        async def open_one(target: str) -> grpc.aio.Channel:
            channel = grpc.aio.insecure_channel(target, options=[("grpc.channel_id", next(numbers))])
            return await stack.enter_async_context(channel)

        yield open_one


@pytest.fixture
async def channel(sidecar: Any, open_channel: OpenChannel) -> grpc.aio.Channel:
    """A connection to the sidecar."""
    return await open_channel(sidecar.target)


@pytest.fixture
def hints(channel: grpc.aio.Channel) -> HintsStub:
    """The request path."""
    return HintsStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> AdminStub:
    """The admin service."""
    return AdminStub(channel)


@pytest.fixture
def stream(hints: HintsStub) -> Iterator[WorkerStream]:
    """A stream that has sent nothing yet."""
    opened = WorkerStream(hints)
    yield opened
    opened.close()
