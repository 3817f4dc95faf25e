"""The peer: a bare `grpc.aio` unary echo, in the loop and with the options of a sidecar that does no work.

A request begins with the size of the response, 4 bytes big-endian; no message is parsed on either side.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import grpc.aio
import uvloop

METHOD = "/bench.Echo/Echo"


async def serve(path: str) -> None:
    """Serves until the process is killed."""

    async def echo(data: bytes, _context: object) -> bytes:
        return bytes(int.from_bytes(data[:4], "big"))

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo)
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
