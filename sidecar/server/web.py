"""Serves /metrics, /livez and /readyz over HTTP.

It runs in the event loop that makes the decisions, so a response of /livez shows that the loop is alive; a
separate thread would respond even while the loop hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from routing_hints.address import TcpAddress
from routing_hints.errors import ConfigurationError, ConfigurationProblem
from sidecar.server.health import Health
from sidecar.server.listener import find_obstacle

_HEALTH: web.AppKey[Health] = web.AppKey("health", Health)
_STOP_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class WebServer:
    """A running HTTP server.

    Attributes:
        address: where it listens, with the actual port.
    """

    address: TcpAddress
    _runner: web.AppRunner

    async def stop(self) -> None:
        """Stops the server within a second."""
        await self._runner.cleanup()


async def start_web(address: TcpAddress, registry: CollectorRegistry, health: Health) -> WebServer:
    """Starts serving in the running loop.

    Raises:
        ConfigurationError: the address can't be bound.
    """
    obstacle = find_obstacle(address)
    if obstacle is not None:
        raise ConfigurationError([ConfigurationProblem("metrics-listen", obstacle.reason)])
    app = web.Application()
    app[_HEALTH] = health
    app.router.add_get("/metrics", make_aiohttp_handler(registry))
    app.router.add_get("/livez", _serve_livez)
    app.router.add_get("/readyz", _serve_readyz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)
    await runner.setup()
    site = web.TCPSite(runner, address.host, address.port, reuse_port=False)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise ConfigurationError(
            [ConfigurationProblem("metrics-listen", f"{address}: can't be bound")]
        ) from None
    return WebServer(TcpAddress(address.host, runner.addresses[0][1]), runner)


async def _serve_livez(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _serve_readyz(request: web.Request) -> web.Response:
    health = request.app[_HEALTH]
    lines = [f"{name}: {'ok' if is_ok else 'not ok'}\n" for name, is_ok in health.components.items()]
    return web.Response(status=200 if health.is_serving else 503, text="".join(lines))
