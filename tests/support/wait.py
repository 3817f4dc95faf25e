"""Polls that end with a message instead of a timeout of the whole test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def wait_until(
    look: Callable[[], Awaitable[T]],
    what: Callable[[], str] | str,
    *,
    pause_s: float = 0.005,
    timeout_s: float = 30.0,
) -> T:
    """Returns what `look` returns, as soon as that is true.

    Args:
        look: called again and again.
        what: what is waited for; completes the message.
        pause_s: seconds between two calls; only spares the processor.
        timeout_s: seconds until the test fails.

    Raises:
        AssertionError: it was never true.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not (found := await look()):
        if loop.time() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s for {what if isinstance(what, str) else what()}")
        await asyncio.sleep(pause_s)
    return found
