"""TLS in front of a plain server, ended by a proxy: for servers of tests that are built without it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(64 << 10):
            target.write(data)
            await target.drain()
    target.close()


@contextmanager
def tls_front(port: int, target: int, cert: str, key: str) -> Iterator[None]:
    """Speak TLS on `port` for the server on the port `target`, as long as the block runs."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    listening = threading.Event()
    stops: list[Callable[[], object]] = []

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pump(reader, plain_writer), _pump(plain_reader, writer))

    async def serve() -> None:
        stop = asyncio.Event()
        stops.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set))
        server = await asyncio.start_server(join, "127.0.0.1", port, ssl=context)
        listening.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="tls-front", daemon=True)
    thread.start()
    assert listening.wait(10), f"nobody listens on {port}"
    try:
        yield
    finally:
        stops[0]()
        thread.join(10)
        assert not thread.is_alive(), "it does not end"
