"""What a stream writes: results, and the policy at first and whenever it changes."""

from __future__ import annotations

import asyncio

from routing_hints.v1 import service_pb2
from sidecar.policy.compiled import ClientView
from sidecar.policy.holder import PolicyHolder
from sidecar.server.error_boundary import Context
from sidecar.wire.response_codec import encode_client_policy


class Outlet:
    """Writes one stream's responses, one at a time: gRPC takes no two writes at once."""

    def __init__(self, context: Context, holder: PolicyHolder) -> None:
        self._context = context
        self._holder = holder
        self._lock = asyncio.Lock()
        self._told: ClientView | None = None

    async def send(self, response: service_pb2.EnrichStreamResponse) -> None:
        """Writes a response, with the policy where the peer does not know it yet; nothing without either."""
        async with self._lock:
            view = self._holder.current.view
            is_news = view is not self._told
            if is_news:
                response.policy.CopyFrom(encode_client_policy(view))
            if is_news or response.results:
                await self._context.write(response.SerializeToString())
                self._told = view

    async def push_changes(self) -> None:
        """Tells the peer of every change of the policy, also while it asks nothing; never returns."""
        while True:
            # Taken before the write, during which the policy may change.
            change = self._holder.next_change
            await self.send(service_pb2.EnrichStreamResponse())
            await change.wait()
