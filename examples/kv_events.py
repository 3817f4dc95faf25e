"""Forwards the KV-cache events of an engine to Dynamo's kv router, one publisher per attention-DP rank."""

import asyncio
from typing import Any

from dynamo.llm import KvEventPublisher

POLL_INTERVAL_S = 0.02


async def publish_kv_events(llm: Any, endpoint: Any, dp_size: int, block_size: int) -> None:
    """Publishes until it is cancelled; only full blocks, since the router handles no others."""
    publishers = [
        KvEventPublisher(endpoint, kv_block_size=block_size, dp_rank=rank, enable_local_indexer=True)
        for rank in range(dp_size)
    ]
    while True:
        async for event in llm.get_kv_cache_events_async(timeout=0):
            publisher, data = publishers[event.get("attention_dp_rank", 0)], event["data"]
            if data["type"] == "removed":
                publisher.publish_removed(data["block_hashes"])
            elif data["type"] == "stored":
                blocks = [block for block in data["blocks"] if len(block["tokens"]) == block_size]
                if blocks:
                    publisher.publish_stored(
                        [token["token_id"] for block in blocks for token in block["tokens"]],
                        [block_size] * len(blocks),
                        [block["block_hash"] for block in blocks],
                        data["parent_hash"],
                        cache_salt=blocks[0].get("cache_salt"),
                    )
        await asyncio.sleep(POLL_INTERVAL_S)
