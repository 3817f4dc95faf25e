"""Lets a SimPy simulation await real asyncio calls, in the order of its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import simpy


class Bridge:
    """Steps a simulation; its time stands still while a call is awaited.

    Args:
        env: the simulation.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._calls: deque[tuple[simpy.Event, Callable[[], Awaitable[Any]]]] = deque()

    def call(self, make: Callable[[], Awaitable[Any]]) -> simpy.Event:
        """Returns an event that succeeds with what the call returns, at the same simulated time."""
        event = self._env.event()
        self._calls.append((event, make))
        return event

    async def run(self, until_s: float) -> None:
        """Runs the simulation up to a time; an exception of a call ends it."""
        while True:
            while self._calls:
                event, make = self._calls.popleft()
                event.succeed(await make())
            if self._env.peek() > until_s:
                return
            self._env.step()
