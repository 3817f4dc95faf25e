"""Ends calls that wait for their peer when the sidecar drains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class DrainingError(Exception):
    """The sidecar drains; the call must end instead of waiting for its peer."""


class DrainGate:
    """Interrupts calls that wait for their peer, and no others, once a drain has begun."""

    def __init__(self) -> None:
        self._begun = False
        self._waiting: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()

    def begin(self) -> None:
        """Interrupts every present and future `wait`."""
        self._begun = True
        self._interrupted.update(self._waiting)
        for task in self._waiting:
            task.cancel()

    async def wait(self, start: Callable[[], Awaitable[T]]) -> T:
        """Starts and awaits an operation that only the peer can complete, such as a read.

        Raises:
            DrainingError: a drain has begun, before or during the wait.
        """
        task = asyncio.current_task()
        if self._begun or task is None:
            raise DrainingError
        self._waiting.add(task)
        try:
            return await start()
        except asyncio.CancelledError:
            if task in self._interrupted:
                raise DrainingError from None
            raise
        finally:
            self._waiting.discard(task)
            self._interrupted.discard(task)
