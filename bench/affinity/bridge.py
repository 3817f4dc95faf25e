"""Lets a SimPy simulation await real asyncio calls, in the order of its events."""

from __future__ import annotations

import asyncio
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
        self._calls: list[tuple[simpy.Event, Callable[[], Awaitable[Any]]]] = []

    def call(self, make: Callable[[], Awaitable[Any]]) -> simpy.Event:
        """Returns an event that succeeds with what the call returns, at the same simulated time."""
        event = self._env.event()
        self._calls.append((event, make))
        return event

    async def run(self, until_s: float) -> None:
        """Runs the simulation up to a time; an exception of a call ends it.

        Calls of one instant begin in the order of their events and are awaited together, so that they may
        share a message; time goes on when all have returned.
        """
        while True:
            if self._calls and self._env.peek() > self._env.now:
                await self._make_calls()
            if self._env.peek() > until_s:
                return
            self._env.step()

    async def _make_calls(self) -> None:
        calls, self._calls = self._calls, []
        results = await asyncio.gather(*(make() for _, make in calls))
        for (event, _), result in zip(calls, results, strict=True):
            event.succeed(result)
