"""A TCP relay on loopback that delays each direction by half a round trip.

    python bench/delay_relay.py TARGET_PORT --rtt-ms 20      prints the port it listens on

Bytes are not slowed otherwise: what was read together is sent together, later. A new connection
costs one round trip more, as a TCP handshake does.
"""

from __future__ import annotations

import argparse
import asyncio


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        while True:
            try:
                data = await reader.read(1 << 18)
            except ConnectionError:
                data = b""  # a reset ends the connection, as a close does
            await queue.put((loop.time() + delay_s, data))
            if not data:
                return

    receiver = asyncio.ensure_future(receive())
    try:
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the peer went away: closing both sides is all there is to do
    finally:
        receiver.cancel()
        writer.close()


async def relay(target_port: int, rtt_s: float, port: int = 0) -> asyncio.Server:
    """Start relaying 127.0.0.1:``port`` (0: any free one) to 127.0.0.1:``target_port``."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(rtt_s)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(
            _pump(reader, up_writer, rtt_s / 2),
            _pump(up_reader, writer, rtt_s / 2),
        )

    return await asyncio.start_server(connected, "127.0.0.1", port)


async def _serve(target_port: int, rtt_s: float, port: int) -> None:
    server = await relay(target_port, rtt_s, port)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target_port", type=int)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.target_port, arguments.rtt_ms / 1000, arguments.port))


if __name__ == "__main__":
    main()
