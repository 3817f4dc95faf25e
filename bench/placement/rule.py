"""The engine's published first placements, beside round robin.

Facts: NVIDIA/TensorRT-LLM#16294 places a new conversation where the fewest requests are queued, #19130
where the fewest tokens are. Neither puts more on a rank than it has slots (tests discussed in #19130;
#17534 says what happens otherwise): the rank with the fewest requests has room if any has, that with
the fewest tokens is looked for under the cap. All else is as in the fake engine's conversation router.
"""

from __future__ import annotations

from examples.fake_engine.router import AdpRouter, ConversationRouter, DefaultRouter, Loads

MAX_SESSIONS = 65_536


class LeastQueuedRouter(ConversationRouter):
    """First turns go to the rank with the fewest requests."""

    def _next_round_robin(self, cap: int, loads: Loads) -> int:
        ranks = range(len(loads.active_requests))
        return min(ranks, key=lambda rank: (loads.active_requests[rank], loads.active_tokens[rank]))


class LeastTokensRouter(ConversationRouter):
    """First turns go to the rank with the fewest tokens of requests."""

    def _next_round_robin(self, cap: int, loads: Loads) -> int:
        return loads.least_loaded(cap)


def build_router(name: str) -> AdpRouter:
    """Returns an engine's router: `default`, `round_robin`, `least_queued` or `least_tokens`."""
    if name == "default":
        return DefaultRouter()
    routers = {
        "round_robin": ConversationRouter,
        "least_queued": LeastQueuedRouter,
        "least_tokens": LeastTokensRouter,
    }
    return routers[name](MAX_SESSIONS, records_first_rank=False)
