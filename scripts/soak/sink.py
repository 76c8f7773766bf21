"""Stands in for a server: takes whatever attackers send, does nothing with it, and refuses it: `python -m soak.sink`.

So attackers cost the machine what they cost it anyway while innocent clients are measured without an attack. Prints its
port. Silent connections are closed after as many seconds as a real server waits for.
"""

from __future__ import annotations

import asyncio
import os
import re

SECONDS = 10.0
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            length = re.search(rb"content-length: *(\d+)", head.lower())
            await asyncio.wait_for(reader.readexactly(int(length[1]) if length else 0), 3 * SECONDS)
            writer.write(REFUSAL)
            await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main())
