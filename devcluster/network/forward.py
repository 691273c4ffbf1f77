"""Lets the host reach one port of a cluster's network through a port on the host's loopback.

The listening socket is made on the host and handed down; this process runs in the cluster's network and connects there.
Nothing in the cluster can use it to get out: it only takes connections that come from the host.
"""

import argparse
import asyncio
import contextlib
import socket
import sys

CHUNK_BYTES = 1 << 16


def listening_socket() -> socket.socket:
    """A socket bound to a free port of the host's loopback."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)


def main() -> int:
    """Serves the inherited socket until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where each connection is taken to")
    options = parser.parse_args()
    asyncio.run(_serve(socket.socket(fileno=options.fd), options.to))
    return 0


async def _serve(listener: socket.socket, target: str) -> None:
    host, port = target.rsplit(":", 1)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))

    server = await asyncio.start_server(connect, sock=listener)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
