"""The floor: length-prefixed bytes over a Unix socket, with neither gRPC nor protobuf.

A request is its own size, the size of its response (4 bytes big-endian each) and filler.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop


async def serve(path: str) -> None:
    """Serves until the process is killed."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readexactly(8)
                await reader.readexactly(int.from_bytes(head[:4], "big") - 8)
                writer.write(bytes(int.from_bytes(head[4:], "big")))
        except asyncio.IncompleteReadError:
            writer.close()

    # All 256 in flight connect at once, which asyncio's default of 100 would refuse.
    server = await asyncio.start_unix_server(respond, path, backlog=1_024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
