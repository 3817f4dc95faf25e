"""The HTTP side of a sidecar, as Prometheus and the kubelet see it."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from routing_hints.address import TcpAddress
from tests.support.messages import CONVERSATION
from tests.support.sidecar import SidecarServer


async def get_page(address: TcpAddress | None, path: str) -> tuple[int, str]:
    """Returns status and text of a page."""
    assert address is not None
    url = f"http://{address.netloc}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def scrape_text(server: SidecarServer) -> str:
    """Returns the metrics as published; they hold no conversation id."""
    status, text = await get_page(server.app.metrics_address, "/metrics")
    assert status == 200
    assert CONVERSATION not in text
    return text


async def scrape(server: SidecarServer) -> dict[str, float]:
    """Returns each sample by its name and its sorted labels, as in `name a=1 b=2`."""
    return {
        " ".join([sample.name, *(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))]): (
            sample.value
        )
        for family in text_string_to_metric_families(await scrape_text(server))
        for sample in family.samples
    }
